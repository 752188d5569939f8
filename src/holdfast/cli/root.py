"""Which command runs which function, and what its failure looks like: one line and a code."""

from __future__ import annotations

import io
import logging
import os
import sys
from typing import Any

from cyclopts import App, CycloptsError

from holdfast import __version__
from holdfast.cli.output import PrintableFormatter, printable, program
from holdfast.errors import HoldfastError, UnknownQueue, UsageError

_PLAIN: dict[str, Any] = {"help_format": "plaintext", "help_formatter": "plain"}
_EVERYWHERE = ("--url", "--json")


def build() -> App:
    """The parser. Commands are imported when they are run, or when their help is shown."""
    app = App(
        name="holdfast",
        help="A durable work queue that holds every job fast until it is done.",
        version=f"holdfast {__version__}",
        help_epilogue=(
            "Every command takes --url, or HOLDFAST_URL; without one it works on the file "
            "holdfast.db here. With --json it prints JSON alone."
        ),
        **_PLAIN,
    )
    job = App(name="job", help="Look at jobs.", **_PLAIN)
    queue = App(name="queue", help="Create and list queues.", **_PLAIN)
    for parent, name, function, does in (
        (app, "up", "upkeep:up", "Bring lapsed leases back, delete old jobs, run schedules."),
        (app, "status", "queues:status", "Show every queue and how it stands."),
        (app, "enqueue", "jobs:enqueue", "Put a job in a queue."),
        (app, "backup", "upkeep:backup", "Copy the queue file while work goes on."),
        (job, "show", "jobs:show", "Show one job and what happened to it."),
        (queue, "create", "queues:create", "Create a queue."),
        (queue, "list", "queues:show_all", "List the queues and their settings."),
    ):
        parent.command(f"holdfast.cli.{function}", name=name, help=does)
    app.command(job)
    app.command(queue)
    return app


def helps() -> dict[tuple[str, ...], str]:
    """The help of every command, 80 columns wide."""
    from rich.console import Console

    def tell(app: App, command: tuple[str, ...]) -> None:
        printed = io.StringIO()
        build().help_print(list(command), console=Console(file=printed, width=80))
        lines = [line.rstrip() for line in printed.getvalue().splitlines()]
        told[command] = "\n".join(lines) + "\n"
        for name in app:
            if not name.startswith("-"):
                tell(app[name], (*command, name))

    told: dict[tuple[str, ...], str] = {}
    tell(build(), ())
    return told


def dispatch(arguments: list[str]) -> int:
    """Run the command; whatever goes wrong is one line on stderr."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a character gets it written out.
        sys.stdout.reconfigure(errors="backslashreplace")
    if not os.environ.get("HOLDFAST_URL"):
        # Empty is the same as not there, as it is for the library.
        os.environ.pop("HOLDFAST_URL", None)
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("holdfast: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    try:
        build()(
            common_last(arguments),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
    except CycloptsError as error:
        return _fail(" ".join(str(error).split()), 2)
    except UnknownQueue as error:
        return _fail(f"{error}, with {program()} queue create NAME", 2)
    except UsageError as error:
        return _fail(str(error), 2)
    except HoldfastError as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return 130
    return 0


def common_last(arguments: list[str]) -> list[str]:
    """What every command takes may also stand before its name: move it behind."""
    moved: list[str] = []
    rest = list(arguments)
    while rest and rest[0].partition("=")[0] in _EVERYWHERE:
        moved.append(rest.pop(0))
        if moved[-1] == "--url" and rest:
            moved.append(rest.pop(0))
    end = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:end], *moved, *rest[end:]]


def _fail(text: str, code: int) -> int:
    print(f"holdfast: {printable(text, one_line=True)}", file=sys.stderr)
    return code
