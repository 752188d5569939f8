"""The process of a server: `holdfast serve`, or `python -m holdfast.server.main` beside workers.

There its options come as one line of JSON on its standard input, because a URL may hold a
password. The pipe stays open: when it closes, who started it is gone and so must this be.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

import msgspec

from holdfast import tracing
from holdfast.app import Holdfast
from holdfast.engines.url import with_namespace
from holdfast.errors import ConfigError, EngineError, HoldfastError
from holdfast.logs import log_to_stderr
from holdfast.loops import loop_run
from holdfast.server.namespaces import DEFAULT
from holdfast.server.serve import serve
from holdfast.server.settings import ServerSettings

_log = logging.getLogger("holdfast.server")

EXIT_FAILED, EXIT_USAGE = 1, 2
_GARBAGE = (5_000, 4, 400)
"""The middle one is what ten thousand streams pay for that are opened at once: a look at as many
objects as the first two make together takes some 20 ms."""
_NAMED = re.compile(r"[?&]namespace=([^&,]*)")


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`descriptor` is a socket that listens already, handed down by whoever starts this."""

    url: str
    settings: ServerSettings
    descriptor: int


def run(
    url: str,
    settings: ServerSettings,
    listening: socket.socket,
    started: Callable[[str], None],
) -> None:
    """Until a signal ends it. A server is for all namespaces of its store."""
    if any(name != DEFAULT for name in _NAMED.findall(url)):
        raise ConfigError(
            "a server serves every namespace: leave `namespace` out of its URL; callers are told "
            "apart by their tokens"
        )
    tracing.begin("holdfast-server")
    # Requests come by the thousand, live for a moment and are in no cycle: look less often, and
    # never again at what was imported.
    gc.freeze()
    gc.set_threshold(*_GARBAGE)

    async def whole() -> None:
        async with Holdfast(with_namespace(url, DEFAULT)) as app:
            await serve(app, settings, listening, started)

    try:
        loop_run()(whole())
    except* HoldfastError as group:
        raise _first(group) from None


def main() -> None:
    log_to_stderr("holdfast", logging.INFO)
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    options = msgspec.json.decode(sys.stdin.buffer.readline(), type=ServeOptions)
    try:
        listening = socket.socket(fileno=options.descriptor)
        run(options.url, options.settings, listening, _started)
    except HoldfastError as error:
        _log.error("%s (%s)", error, error.code)
        sys.exit(EXIT_FAILED if isinstance(error, EngineError) else EXIT_USAGE)


def _started(url: str) -> None:
    """To whoever started this, once."""
    descriptor = int(os.environ.pop("HOLDFAST_READY", "-1"))
    if descriptor >= 0:
        with suppress(OSError):
            os.write(descriptor, url.encode())
        os.close(descriptor)
    loop = asyncio.get_running_loop()

    def look() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            # The same as being told twice: nobody is left to wait for a slow end.
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)

    os.set_blocking(0, False)
    loop.add_reader(0, look)


def _first(group: BaseExceptionGroup[HoldfastError]) -> HoldfastError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


if __name__ == "__main__":
    main()
