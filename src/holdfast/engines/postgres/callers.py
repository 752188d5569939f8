"""Connections that callers bring: which library they are of, and how a statement runs on them.

A library is looked for among the modules that are loaded. If it is not, no object is its.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from holdfast.engines.postgres.steps import Row
from holdfast.errors import UsageError

Run: TypeAlias = Callable[[str, Sequence[Any]], Sequence[Row]]
AsyncRun: TypeAlias = Callable[[str, Sequence[Any]], Awaitable[Sequence[Row]]]


class Caller(NamedTuple):
    """How to run a statement: one of the two."""

    run: Run | None = None
    async_run: AsyncRun | None = None


def recognise(connection: Any) -> Caller:
    for recognised in (_asyncpg, _psycopg, _sqlalchemy, _sqlalchemy_async, _django):
        caller = recognised(connection)
        if caller is not None:
            return caller
    kind = type(connection)
    raise UsageError(
        f"{kind.__module__}.{kind.__qualname__} is no connection that can be used: bring one of "
        "psycopg, asyncpg, SQLAlchemy or Django"
    )


def _asyncpg(connection: Any) -> Caller | None:
    if not _is_a(connection, "asyncpg", "Connection") and not _is_a(
        connection, "asyncpg.pool", "PoolConnectionProxy"
    ):
        return None

    async def run(text: str, values: Sequence[Any]) -> Sequence[Row]:
        rows: Sequence[Row] = await connection.fetch(text, *values)
        return rows

    return Caller(async_run=run)


def _psycopg(connection: Any) -> Caller | None:
    if _is_a(connection, "psycopg", "Connection"):

        def run(text: str, values: Sequence[Any]) -> Sequence[Row]:
            with connection.cursor(row_factory=_tuples()) as cursor:
                cursor.execute(*_named(text, values))
                rows: Sequence[Row] = cursor.fetchall() if cursor.description else []
                return rows

        return Caller(run=run)
    if not _is_a(connection, "psycopg", "AsyncConnection"):
        return None

    async def async_run(text: str, values: Sequence[Any]) -> Sequence[Row]:
        async with connection.cursor(row_factory=_tuples()) as cursor:
            await cursor.execute(*_named(text, values))
            rows: Sequence[Row] = await cursor.fetchall() if cursor.description else []
            return rows

    return Caller(async_run=async_run)


def _sqlalchemy(connection: Any) -> Caller | None:
    is_session = _is_a(connection, "sqlalchemy.orm", "Session")
    if not is_session and not _is_a(connection, "sqlalchemy.engine", "Connection"):
        return None

    def run(text: str, values: Sequence[Any]) -> Sequence[Row]:
        current = connection.connection() if is_session else connection
        result = current.exec_driver_sql(*_in_dialect(current.dialect, text, values))
        rows: Sequence[Row] = result.fetchall() if result.returns_rows else []
        return rows

    return Caller(run=run)


def _sqlalchemy_async(connection: Any) -> Caller | None:
    is_session = _is_a(connection, "sqlalchemy.ext.asyncio", "AsyncSession")
    if not is_session and not _is_a(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        return None

    async def run(text: str, values: Sequence[Any]) -> Sequence[Row]:
        current = await connection.connection() if is_session else connection
        result = await current.exec_driver_sql(*_in_dialect(current.dialect, text, values))
        rows: Sequence[Row] = result.fetchall() if result.returns_rows else []
        return rows

    return Caller(async_run=run)


def _django(connection: Any) -> Caller | None:
    if not _is_a(connection, "django.db.backends.base.base", "BaseDatabaseWrapper") and not _is_a(
        connection, "django.utils.connection", "ConnectionProxy"
    ):
        return None
    if connection.vendor != "postgresql":
        raise UsageError(f"the Django connection is to {connection.vendor}, not to PostgreSQL")

    def run(text: str, values: Sequence[Any]) -> Sequence[Row]:
        with connection.cursor() as cursor:
            cursor.execute(*_named(text, values))
            rows: Sequence[Row] = cursor.fetchall() if cursor.description else []
            return rows

    return Caller(run=run)


def _is_a(connection: Any, module: str, name: str) -> bool:
    loaded = sys.modules.get(module)
    kind = getattr(loaded, name, None)
    return isinstance(kind, type) and isinstance(connection, kind)


def _tuples() -> Any:
    return sys.modules["psycopg"].rows.tuple_row


def _in_dialect(dialect: Any, text: str, values: Sequence[Any]) -> tuple[str, Any]:
    if dialect.name != "postgresql":
        raise UsageError(f"the SQLAlchemy connection is to {dialect.name}, not to PostgreSQL")
    if dialect.paramstyle == "pyformat":
        return _named(text, values)
    if dialect.paramstyle == "numeric_dollar":
        return text, tuple(values)
    raise UsageError(
        f"SQLAlchemy runs on {dialect.driver} here: it can be used on psycopg or asyncpg"
    )


def _named(text: str, values: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """The statement with its values by name, for libraries that do not know `$1`."""
    named = re.sub(r"\$(\d+)", r"%(v\1)s", text.replace("%", "%%"))
    return named, {f"v{position}": value for position, value in enumerate(values, 1)}
