"""`manage.py holdfast_worker`: workers for the project's tasks, until they are told to stop."""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from holdfast.app import Holdfast
from holdfast.core.model import Queue
from holdfast.django.serving import ALIAS, chosen
from holdfast.errors import HoldfastError
from holdfast.worker import launcher
from holdfast.worker.options import WorkerOptions, default_processes, numbered


class Command(BaseCommand):  # type: ignore[misc]
    """As `holdfast worker run holdfast.django:app`, with the URL and the queues of the settings."""

    help = "Run the project's tasks. The first Ctrl-C finishes what runs, the second stops at once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", help="Which of TASKS, if several are Holdfast's.")
        parser.add_argument("--queue", action="append", help="Serve only this one; repeatable.")
        parser.add_argument("--count", type=int, default=1, help="How many workers.")
        parser.add_argument("--processes", type=int, default=default_processes())
        parser.add_argument("--concurrency", type=int, default=16, help="Tasks at once in each.")
        parser.add_argument("--name", help="A name that stays.")

    def handle(self, *_: Any, **given: Any) -> None:
        backend = chosen(given["backend"])
        url = backend.app.url
        if url is None or not backend.app.home.store.traits.shared:
            raise CommandError("workers are processes of their own: use a url such as sqlite:///…")
        queues = given["queue"] or sorted(backend.queues) or ["default"]
        options = WorkerOptions(
            url=url,
            target="holdfast.django:app",
            queues=dict.fromkeys(queues, 1),
            processes=given["processes"],
            concurrency=given["concurrency"],
            name=given["name"],
        )
        os.environ[ALIAS] = backend.alias
        # The project is where manage.py is, whatever the current folder.
        path = [sys.path[0], *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
        try:
            asyncio.run(_declare(url, queues))
            workers = numbered(options, given["count"])
        except HoldfastError as error:
            raise CommandError(str(error)) from None

        def started(names: list[str]) -> None:
            told = ", ".join(sorted(names))
            self.stdout.write(f"running on {backend.app.place}: {told}; Ctrl-C drains, twice stops")

        code = launcher.run(workers, started=started)
        if code:
            raise CommandError(f"the workers ended with {code}", returncode=code)


async def _declare(url: str, queues: list[str]) -> None:
    async with Holdfast(url) as app:
        for name in queues:
            await app.engine.declare(Queue(name=name), instead_of=None)
