"""Starts workers for an application from within its own program: finds out what it is called.

A worker's children import the application by themselves, so it must be a name in a module.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import UsageError
from holdfast.worker.options import WorkerOptions, numbered

if TYPE_CHECKING:
    from holdfast.app import Holdfast


def start_workers(app: Holdfast, count: int, options: dict[str, Any]) -> int:
    from holdfast.worker.launcher import run

    return run(numbered(worker_options(app, options), count))


def worker_options(app: Holdfast, options: dict[str, Any]) -> WorkerOptions:
    if app.url is None or not app.engine.traits.shared:
        raise UsageError(
            "a worker is a process of its own and finds the jobs by the URL: make the Holdfast "
            "with one, such as sqlite:///work.db"
        )
    unknown = sorted(set(options).difference(WorkerOptions.__struct_fields__))
    if unknown:
        known = ", ".join(WorkerOptions.__struct_fields__)
        raise UsageError(f"run_worker: a worker has no {', '.join(unknown)}; it has {known}")
    given = {"url": app.url, "target": target_of(app), "queues": {}, **options}
    try:
        return msgspec.convert(given, WorkerOptions, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"run_worker: {error}") from None


def target_of(app: object) -> str:
    """`module:attribute`, or `path.py:attribute` when it lives in the script that is run."""
    for name, module in list(sys.modules.items()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is app or getattr(value, "_app", None) is app:
                return f"{_place(name, module)}:{attribute}"
    raise UsageError("the application has no name in any module: assign it, as in app = Holdfast()")


def _place(name: str, module: Any) -> str:
    if name != "__main__":
        return name
    spec = getattr(module, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    file = getattr(module, "__file__", None)
    if file is None:
        raise UsageError("a worker cannot import what was typed in: put the tasks into a file")
    return str(Path(file).resolve())
