"""Connections to PostgreSQL that outlive their engine, for the next one on the same event loop.

A server plans every statement anew for each connection, which is most of what a short test of an
engine costs. Only an idle connection is handed on; what a test left in flight is closed.
"""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Any, Self

from holdfast.engines.postgres import PostgresEngine
from holdfast.engines.postgres.pool import PostgresConnection, PostgresPool
from holdfast.engines.postgres.script import Statement


class ReusedConnections:
    """Use it as a context manager: at its end the connections are closed."""

    def __init__(self) -> None:
        self.idle: list[PostgresConnection] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        type_: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self.idle:
            self.idle.pop().terminate()

    def engine(self, dsn: str, **options: Any) -> PostgresEngine:
        """All on one database: a connection is the same for every namespace of it."""
        engine = PostgresEngine(dsn, **options)
        self.serve(engine)
        return engine

    def serve(self, engine: PostgresEngine) -> None:
        """Let an engine that is not open yet use these connections."""
        made = engine._make_pool
        engine._make_pool = partial(self._pool, *made.args, **made.keywords)

    def _pool(self, dsn: str, **options: Any) -> PostgresPool:
        return ReusedPool(dsn, reused=self, **options)


class ReusedPool(PostgresPool):
    def __init__(self, dsn: str, *, reused: ReusedConnections, **options: Any) -> None:
        super().__init__(dsn, **options)
        self._reused = reused

    async def dial(self) -> PostgresConnection:
        while self._reused.idle:
            connection = self._reused.idle.pop()
            if not connection.is_closed():
                return connection
        return await super().dial()

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        await super().close()
        self._reused.idle += idle


class ForgetfulConnections(ReusedConnections):
    """As behind a pooler that gives every transaction, and every statement outside of one, a
    session that was just emptied."""

    def engine(self, dsn: str, **options: Any) -> PostgresEngine:
        return super().engine(dsn, pooled=True, **options)

    def _pool(self, dsn: str, **options: Any) -> PostgresPool:
        return ForgetfulPool(dsn, reused=self, **options)


class ForgetfulPool(ReusedPool):
    async def _fetch(self, connection: PostgresConnection, statement: Statement) -> list[Any]:
        if not connection.is_in_transaction():
            await connection.execute("DISCARD ALL")
        self._idle.reverse()
        rows = await super()._fetch(connection, statement)
        prepared = "SELECT count(*) FROM pg_prepared_statements WHERE name <> ''"
        assert await connection.fetchval(prepared) == 0
        assert await connection.fetchval("SELECT count(*) FROM pg_listening_channels()") == 0
        return rows
