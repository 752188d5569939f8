"""A pool of connections: opened with back-off and jitter, lent to one caller at a time, closed when
in doubt. Runs scripts, decides what a failure means for them, and repeats only scripts that the
server has rolled back. It knows nothing about jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import asyncpg

from holdfast.engines.postgres import faults
from holdfast.engines.postgres.schema import checked_text
from holdfast.engines.postgres.script import Restart, Script, Statement, T
from holdfast.errors import (
    ConfigError,
    EngineClosed,
    EngineError,
    EngineUnavailable,
    HoldfastError,
)

CONNECT_S_MAX = 10.0
COMMAND_S_MAX = 30.0
SLOT_S_MAX = 30.0
CLOSE_S_MAX = 5.0
TRIES_MAX = 6
BACKOFF_S_FIRST, BACKOFF_S_MAX = 0.05, 1.0
DEAD_PEER_MS_MAX = 15_000

SESSION = {
    "application_name": "holdfast",
    # Each statement must see the changes that the one before it waited for.
    "default_transaction_isolation": "read committed",
    # A plan cached while a table was small must not scan it when it is large.
    "enable_seqscan": "off",
    "jit": "off",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
BEGIN = """
BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '30s'
"""
"""The timeout frees the locks of a process that freezes within a transaction."""

FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""Errors of the library when the server or the network fails; timeouts are OSErrors."""


if TYPE_CHECKING:

    class _Connection:
        """asyncpg ships no types."""

        def __getattr__(self, name: str) -> Any: ...

else:
    _Connection = asyncpg.Connection


class PostgresConnection(_Connection):
    """A connection that notices when its peer disappears."""

    def keep_alive(self) -> None:
        """Switch on TCP keepalives."""
        peer = self._transport.get_extra_info("socket")
        if peer is None or peer.family not in (socket.AF_INET, socket.AF_INET6):
            return
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", 5),
            ("TCP_KEEPINTVL", 3),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", DEAD_PEER_MS_MAX),
        ):
            if hasattr(socket, name):
                peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


Setup = Callable[[PostgresConnection], Awaitable[None]]


class PostgresPool:
    """At most `size` connections. `setup` checks each new connection before it is used."""

    def __init__(self, dsn: str, *, schema: str, size: int, pooled: bool, setup: Setup) -> None:
        self.where: str = faults.mask(dsn)
        self._dsn = dsn
        self._schema = schema
        self._pooled = pooled
        self._setup = setup
        self._idle: list[PostgresConnection] = []
        self._lent: set[PostgresConnection] = set()
        self._size = size
        self._slots = asyncio.Semaphore(size)
        self._texts: dict[str, str] = {}
        self._failures = 0
        self._retry_at = 0.0
        self._refusal = ""
        self._pid = os.getpid()
        self._open = True

    def text(self, statement: str) -> str:
        """The SQL with the schema's name in it, and a check of the schema's version."""
        text = self._texts.get(statement)
        if text is None:
            text = self._texts[statement] = checked_text(statement, self._schema)
        return text

    async def open(self, prepare: Callable[[PostgresConnection], Awaitable[T]]) -> T:
        """Dial the first connection, run `prepare` on it, and keep it."""
        try:
            connection = await self.dial()
            try:
                prepared = await prepare(connection)
            except BaseException:
                connection.terminate()
                raise
        except FAILURES as error:
            raise self.explain(error) from error
        self._idle.append(connection)
        return prepared

    async def connect(self) -> PostgresConnection:
        """A new connection, for the caller to close. After a failure the next attempt is refused at
        once until a pause is over, so that a recovering server is not overwhelmed."""
        if time.monotonic() < self._retry_at:
            raise EngineUnavailable(self._refusal)
        try:
            connection = await self.dial()
            try:
                await self._setup(connection)
            except BaseException:
                connection.terminate()
                raise
        except FAILURES as error:
            refused = self.explain(error)
            self._back_off(refused)
            raise refused from error
        except EngineUnavailable as error:
            self._back_off(error)
            raise
        self._failures = 0
        return connection

    async def dial(self) -> PostgresConnection:
        """Open a connection without checking it; raises the errors of the library."""
        try:
            connection: PostgresConnection = await asyncpg.connect(
                self._dsn,
                connection_class=PostgresConnection,
                timeout=CONNECT_S_MAX,
                command_timeout=COMMAND_S_MAX,
                statement_cache_size=0 if self._pooled else 100,
                server_settings=None if self._pooled else SESSION,
            )
        except asyncpg.ClientConfigurationError as error:
            raise ConfigError(f"the address of PostgreSQL cannot be used: {error}") from error
        except (ValueError, OverflowError):
            # The part that could not be read may be the password, so it is not shown.
            raise ConfigError(
                "the address of PostgreSQL cannot be parsed: the port must be 0 to 65535, and"
                " the characters / # ? @ : % of a password must be percent-encoded"
            ) from None
        connection.keep_alive()
        return connection

    def _back_off(self, error: EngineError) -> None:
        longest = min(BACKOFF_S_MAX, BACKOFF_S_FIRST * 2**self._failures)
        self._failures = min(self._failures + 1, 20)
        self._retry_at = time.monotonic() + random.uniform(longest / 2, longest)
        self._refusal = str(error)

    @contextlib.asynccontextmanager
    async def lend(self) -> AsyncIterator[PostgresConnection]:
        """A checked connection. It is closed afterwards if its state is not known."""
        if self._pid != os.getpid():
            raise EngineClosed("this engine was opened before a fork: open a new one")
        await self._acquire_slot()
        try:
            if not self._open:
                raise EngineClosed("the PostgreSQL engine is not open")
            while self._idle and self._idle[-1].is_closed():
                self._idle.pop()
            connection = self._idle.pop() if self._idle else await self.connect()
            self._lent.add(connection)
            try:
                yield connection
            except (HoldfastError, _Undone):
                if not connection.is_closed() and connection.is_in_transaction():
                    connection.terminate()
                raise
            except BaseException:
                connection.terminate()
                raise
            finally:
                self._lent.discard(connection)
                self._take_back(connection)
        finally:
            self._slots.release()

    async def _acquire_slot(self) -> None:
        """The right to one connection, first come first served, after a bounded wait."""
        if not self._slots.locked():
            await self._slots.acquire()
            return
        try:
            async with asyncio.timeout(SLOT_S_MAX):
                await self._slots.acquire()
        except TimeoutError as error:
            raise EngineUnavailable(
                f"all {self._size} connections to PostgreSQL at {self.where} were busy for "
                f"{SLOT_S_MAX:.0f} s; nothing was changed: open the engine with more connections"
            ) from error

    def _take_back(self, connection: PostgresConnection) -> None:
        if not self._open:
            connection.terminate()
        elif not connection.is_closed():
            self._idle.append(connection)

    def explain(self, error: BaseException, *, doubtful: bool = False) -> EngineError:
        return faults.explain(error, doubtful=doubtful, where=self.where)

    def forget(self) -> None:
        """Close idle connections, because the address may now lead to another server."""
        while self._idle:
            self._idle.pop().terminate()

    async def close(self) -> None:
        """Wait a moment for calls in flight, because a lease whose answer is lost delays its job;
        then close all connections."""
        self._open = False
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S_MAX):
                    for _ in range(self._size):
                        await self._slots.acquire()
        finally:
            for connection in (*self._lent, *self._idle):
                connection.terminate()
            self._idle.clear()
            # A call that is about to retry gets a slot at once and sees that the pool is closed.
            for _ in range(self._size):
                self._slots.release()

    async def run(self, make: Callable[[], Script[T]], *, writes: bool = True) -> T:
        """Run a script in a transaction. Repeat it if the server rolled it back, a bounded number
        of times.
        """
        for tried in range(1, TRIES_MAX + 1):
            try:
                async with self.lend() as connection:
                    return await self._run_script(connection, make(), writes=writes)
            except _Undone as undone:
                last = undone
                if tried < TRIES_MAX:
                    await asyncio.sleep(random.uniform(0, 0.005 * 2**tried))
        raise EngineUnavailable(
            f"PostgreSQL at {self.where} rolled back the call {TRIES_MAX} times: {last}; "
            "nothing was changed: try again later"
        ) from last

    async def _run_script(
        self, connection: PostgresConnection, script: Script[T], *, writes: bool
    ) -> T:
        begun = doubtful = False
        rows: list[Any] | None = None
        try:
            while True:
                try:
                    statement = next(script) if rows is None else script.send(rows)
                except StopIteration as stop:
                    if begun:
                        doubtful = writes
                        await connection.execute("COMMIT")
                    result: T = stop.value
                    return result
                if not (statement.alone or begun):
                    await connection.execute(BEGIN)
                    begun = True
                doubtful = writes and not begun
                rows = await self._fetch(connection, statement)
                doubtful = False
        except Restart as restart:
            await self._roll_back(connection)
            raise _Undone("other calls changed the same jobs or queues") from restart
        except HoldfastError:
            await self._roll_back(connection)
            raise
        except FAILURES as error:
            if faults.is_cut(error):
                connection.terminate()
            else:
                await self._roll_back(connection)
            raise self._judge(error, doubtful=doubtful, writes=writes) from error

    async def _roll_back(self, connection: PostgresConnection) -> None:
        """Roll back, and ignore a failure: `lend` closes a connection left in its transaction."""
        if not connection.is_closed() and connection.is_in_transaction():
            with contextlib.suppress(*FAILURES):
                await connection.execute("ROLLBACK")

    async def _fetch(self, connection: PostgresConnection, statement: Statement) -> list[Any]:
        rows: list[Any] = await connection.fetch(self.text(statement.text), *statement.values)
        return rows

    def _judge(self, error: BaseException, *, doubtful: bool, writes: bool) -> Exception:
        code = faults.sqlstate_of(error)
        if faults.is_unsent(error):
            # The server is ending the other connections too.
            self.forget()
            return _Undone(faults.ENDED_BETWEEN)
        if code in faults.REPEATABLE or (faults.is_cut(error) and not writes):
            return _Undone(str(error))
        if code == faults.READ_ONLY:
            self.forget()
        return self.explain(error, doubtful=doubtful)


class _Undone(Exception):
    """The server rolled the script back, so it may run again."""
