"""An Amazon SQS endpoint for tests: a server in a thread of this process, on a memory store.

Its queues start empty and are gone with it. It accepts any credentials, and has none of AWS's
pauses after a queue was purged or deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from importlib import import_module
from typing import Any, Final

from holdfast.app.application import Holdfast
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import ConfigError

REGION: Final = "us-east-1"
KEY: Final = "test"
"""Both parts of the client's access key. The endpoint does not verify it."""

_CONNECTIONS_MAX: Final = 500
"""So few that the limit on open files of the test process stays as it is."""
_EXTRAS: Final = {"boto3": "aws", "uvicorn": "server", "prometheus_client": "server"}


@contextlib.contextmanager
def sqs_client(**options: Any) -> Iterator[Any]:
    """A boto3 client of an endpoint of its own. `options` are those of `boto3.client`."""
    boto3 = _imported("boto3")
    with sqs_server() as url:
        given = {
            "endpoint_url": url,
            "region_name": REGION,
            "aws_access_key_id": KEY,
            "aws_secret_access_key": KEY,
            **options,
        }
        client = boto3.session.Session().client("sqs", **given)
        try:
            yield client
        finally:
            client.close()


@contextlib.contextmanager
def sqs_server() -> Iterator[str]:
    """The URL of an endpoint that runs until the block ends."""
    for package in ("uvicorn", "prometheus_client"):
        _imported(package)
    server = _ThreadServer()
    try:
        yield server.start()
    finally:
        server.stop()


class _ThreadServer:
    """A server with an event loop in its own thread."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._url: Future[str] = Future()
        self._stop: Callable[[], object] | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast sqs", daemon=True)

    def start(self) -> str:
        """Start the server, and return its URL once it answers."""
        self._thread.start()
        return self._url.result()

    def stop(self) -> None:
        """Stop the server. Open long polls end with an empty answer."""
        if self._stop is not None:
            self._stop()
        self._thread.join()
        self._listening.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._url.done():
                raise
            self._url.set_exception(error)

    async def _serve(self) -> None:
        from holdfast.server.main import serve_state
        from holdfast.server.settings import ServerSettings
        from holdfast.server.state import ServerState

        async with Holdfast(engine=MemoryEngine()) as app:
            settings = ServerSettings(auth=False, sqs="relaxed", connections_max=_CONNECTIONS_MAX)
            state = ServerState(app=app, settings=settings)
            await serve_state(state, self._listening, self._url.set_result, self._stoppable)

    @contextlib.contextmanager
    def _stoppable(self, stop: Callable[[], None]) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(stop)
        try:
            yield
        finally:
            self._stop = None


def _imported(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"the SQS endpoint for tests needs the package {package}:"
            f" pip install 'holdfast[{_EXTRAS[package]}]'"
        ) from error
