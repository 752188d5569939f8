"""The command line of the programs: `python -m bench.compare.programs.program NAME ROLE ARGUMENTS`.

Uses only the standard library. Workers are started with the queue's own command instead.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypedDict


class Job(TypedDict, total=False):
    """A job of the task `step`, and what the queue should do with it."""

    label: str
    seconds: float
    fails: int
    group: str
    tenant: str


Roles = dict[str, Callable[..., Any]]


def roles(*functions: Callable[..., Any]) -> Roles:
    """The roles of a program, by their names.

    `enqueue` takes jobs and returns their ids, `many` enqueues jobs that only count themselves.
    `declare` sets limits of the queue. `result` is the result of a job. `failed` finds the job that
    failed for good, `put_back` edits it and puts it back. `fan_in` enqueues jobs and one after all
    of them. `wrong` enqueues a wrong argument. `tested` runs a task as a test would.
    """
    return {function.__name__: function for function in functions}


def until(look: Callable[[], Any], seconds: float) -> Any:
    """Wait until `look` returns something true; return it, or None."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.05)
    return None


def main(name: str, role: str, arguments: str) -> None:
    """Call a role and print its answer as JSON. The program is imported by its name, as workers
    import it."""
    known: Roles = import_module(f"bench.compare.programs.{name}").ROLES
    if role not in known:
        raise SystemExit(f"unknown role {role!r}: expected one of {', '.join(known)}")
    print(json.dumps(known[role](**json.loads(arguments))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
