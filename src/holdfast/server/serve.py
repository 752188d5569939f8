"""A server from its start to its end: the store, upkeep, the listening socket, and signals.

The first signal lets what was asked be answered within the grace time, while streams and waits
end by themselves; the second ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator

from holdfast.app import Holdfast
from holdfast.server.keeping import Keeping
from holdfast.server.namespaces import DEFAULT
from holdfast.server.settings import ServerSettings
from holdfast.server.state import Server
from holdfast.server.web import Web


async def serve(
    app: Holdfast,
    settings: ServerSettings,
    listening: socket.socket,
    started: Callable[[str], None] | None = None,
) -> None:
    """Until a signal ends it. `app` is open; `started` hears where the server listens."""
    # When an alert is over is news too.
    logging.getLogger("holdfast.alerts").setLevel(logging.INFO)
    server = Server(app=app, settings=settings)
    web = Web(server)
    keeping = Keeping(server)
    try:
        with _signals(web.hear):
            try:
                server.namespaces.opened.append(keeping.begin)
                keeping.begin(DEFAULT, app)
                for name in sorted({*settings.namespaces, *await server.tokens.namespaces()}):
                    await server.namespaces.get(name)
                await web.run(listening, started)
            finally:
                await keeping.end(web.at_once)
    finally:
        await server.namespaces.close()


@contextlib.contextmanager
def _signals(hear: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, hear)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
