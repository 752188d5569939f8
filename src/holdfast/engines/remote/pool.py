"""Connections to one server, kept while they are of use: the last one used is the next one."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable

from holdfast.engines.remote.connection import Answer, Connection, Cut

_CONNECT_S = 5.0
_IDLE_S = 30.0
"""Servers, and what lies between, let go of a silent connection after a minute or so."""
_CONNECTIONS_MAX = 256


class Unreachable(Exception):
    """Nothing was sent."""


class Pool:
    """`body_max` bounds an answer. Nothing is connected before it is needed."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None, body_max: int) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._body_max = body_max
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._room = asyncio.Semaphore(_CONNECTIONS_MAX)
        self.closed = False

    def close(self) -> None:
        """Whoever waits for an answer is told that there is none."""
        self.closed = True
        self._idle.clear()
        for connection in self._all:
            connection.hang_up()

    async def ask(
        self, request: bytes, *, timeout_s: float, unheard: Callable[[Answer], None] | None = None
    ) -> Answer:
        """The answer to a request that is sent once, else Unreachable or Cut."""
        sent = False
        try:
            async with asyncio.timeout(timeout_s), self._room:
                connection = self._idle_one() or await self._connected()
                self._all.add(connection)
                sent = True
                try:
                    answer = await connection.ask(request, unheard)
                finally:
                    self._put_back(connection)
        except TimeoutError:
            if sent:
                raise Cut(f"there was no answer within {timeout_s:g} s") from None
            raise Unreachable(f"all {_CONNECTIONS_MAX} connections are in use") from None
        return answer

    def _idle_one(self) -> Connection | None:
        oldest = asyncio.get_running_loop().time() - _IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since >= oldest and connection.reusable:
                return connection
            connection.hang_up()
        return None

    def _put_back(self, connection: Connection) -> None:
        self._all.discard(connection)
        if not self.closed and connection.reusable:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
            self._all.add(connection)
        else:
            connection.hang_up()

    async def _connected(self) -> Connection:
        if self.closed:
            raise Unreachable("the engine was closed")
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self._body_max),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
        except TimeoutError:
            raise Unreachable(f"no connection within {_CONNECT_S:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise Unreachable(
                f"its certificate is not trusted: {error.verify_message}; "
                "ca=FILE in the URL names one to trust"
            ) from None
        except ssl.SSLError as error:
            why = error.reason or "it speaks something else"
            raise Unreachable(f"no TLS with it ({why}): does it serve plain http://?") from None
        except (OSError, UnicodeError) as error:
            raise Unreachable(_told(error)) from None
        return connection


def _told(error: OSError | UnicodeError) -> str:
    """As the system words it: loops have texts of their own, and names have negative numbers."""
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number > 0:
        return os.strerror(number)
    return getattr(error, "strerror", None) or str(error)
