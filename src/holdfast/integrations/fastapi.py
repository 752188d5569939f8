"""Holdfast in a FastAPI application: opened on the server's event loop, and a dependency.

`FastAPI(lifespan=lifespan(app))` opens the store when the server starts and closes it when it ends,
so that `await task.aenqueue(…)` in a request calls the engine directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, FastAPI, Request

from holdfast.app.application import Holdfast, worker_options
from holdfast.worker.launcher import as_program
from holdfast.worker.managed_process import ManagedProcess

Lifespan: TypeAlias = Callable[[FastAPI], AbstractAsyncContextManager[dict[str, Any]]]


def lifespan(app: Holdfast, *, worker: bool = False) -> Lifespan:
    """A lifespan for FastAPI that opens and closes this application. With `worker` it also runs one
    worker for its tasks, in processes of its own, that ends with the server: for development, and
    for services that need no more."""

    @asynccontextmanager
    async def run(api: FastAPI) -> AsyncIterator[dict[str, Any]]:
        async with app:
            process = ManagedProcess(as_program(worker_options(app, {}))) if worker else None
            if process is not None:
                process.start()
            try:
                yield {"holdfast": app}
            finally:
                if process is not None:
                    await asyncio.to_thread(_stop, process)

    return run


async def opened_app(request: Request) -> Holdfast:
    """The application that `lifespan` opened."""
    app: Holdfast = request.state.holdfast
    return app


OpenedApp: TypeAlias = Annotated[Holdfast, Depends(opened_app)]
"""A parameter of this type gets the application: `async def status(jobs: OpenedApp)`."""


def _stop(managed: ManagedProcess) -> None:
    """Let the worker finish its running jobs, as Ctrl-C does."""
    managed.pass_signals(1)
    process = managed.process
    assert process is not None
    assert process.stdin is not None
    process.wait()
    # Only now: a worker whose standard input is closed stops without finishing its jobs.
    process.stdin.close()
    managed.read_name()
