"""`manage.py holdfast_worker`: run workers for the project's tasks until they are stopped."""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any, TextIO

from django.core.management.base import CommandError

from holdfast.app.application import Holdfast
from holdfast.core.model import Queue
from holdfast.django.backend import ALIAS_VARIABLE, chosen_backend
from holdfast.errors import HoldfastError
from holdfast.worker import launcher
from holdfast.worker.options import WorkerOptions, default_processes, numbered

if TYPE_CHECKING:

    class BaseCommand:
        """Django ships no types."""

        stdout: TextIO

else:
    from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """Like `holdfast worker run holdfast.django:app`, with URL and queues from the settings."""

    help = (
        "Run workers for the project's tasks. The first Ctrl-C drains running tasks, "
        "the second stops at once."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", metavar="ALIAS", help="Use this backend of TASKS.")
        parser.add_argument(
            "--queue", action="append", metavar="NAME", help="Serve only this queue; repeatable."
        )
        parser.add_argument(
            "--count", default=1, help="Number of workers. [default: 1]", type=int, metavar="N"
        )
        parser.add_argument(
            "--processes",
            default=default_processes(),
            help="Child processes of each worker. [default: one per core]",
            type=int,
            metavar="N",
        )
        parser.add_argument(
            "--concurrency",
            default=None,
            help="Tasks each worker runs at the same time. [default: 16]",
            type=int,
            metavar="N",
        )
        parser.add_argument("--name", metavar="NAME", help="A stable name for the worker.")

    def handle(self, *_: Any, **given: Any) -> None:
        backend = chosen_backend(given["backend"])
        url = backend.app.url
        if url is None or not backend.app.home.store.traits.shared:
            raise CommandError(
                "workers are separate processes: set OPTIONS url to a shared store such as "
                "sqlite:///work.db"
            )
        queues = given["queue"] or sorted(backend.queues) or ["default"]
        options = WorkerOptions(
            url=url,
            target="holdfast.django:app",
            queues=dict.fromkeys(queues, 1),
            processes=given["processes"],
            concurrency=given["concurrency"],
            name=given["name"],
        )
        os.environ[ALIAS_VARIABLE] = backend.alias
        # The project is in the folder of manage.py, which may not be the current one.
        path = [sys.path[0], *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
        try:
            asyncio.run(_declare(url, queues))
            workers = numbered(options, given["count"])
        except HoldfastError as error:
            raise CommandError(str(error)) from None

        def started(names: list[str]) -> None:
            workers = ", ".join(sorted(names))
            self.stdout.write(
                f"running on {backend.app.place}: {workers}; Ctrl-C drains, twice stops"
            )

        code = launcher.run(workers, started=started)
        if code:
            raise CommandError(f"the workers exited with code {code}", returncode=code)


async def _declare(url: str, queues: list[str]) -> None:
    async with Holdfast(url) as app:
        for name in queues:
            await app.engine.declare(Queue(name=name), instead_of=None)
