"""Enqueue and settle in a caller's own transaction, on the caller's connection.

Never begins, commits or rolls back. A single call takes its locks in the order of `write`, and
fails if another call holds a child that it must notify. It keeps them until the caller's
transaction ends: several calls in one transaction, or other locks of the caller, can deadlock with
other transactions. In both cases the caller rolls back and repeats.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from holdfast.core import checks
from holdfast.core.model import NewJob, Receipt
from holdfast.core.verdict import Outcome, Settlement
from holdfast.engines.postgres import enqueue, faults, settle
from holdfast.engines.postgres.flow import dependencies
from holdfast.engines.postgres.schema import NamespaceIdentity, checked_text, plain_text
from holdfast.engines.postgres.script import CallContext, Restart, Row, Script, Statement, T
from holdfast.errors import EngineUnavailable, HoldfastError, UsageError

RunStatement: TypeAlias = Callable[[str, Sequence[Any]], Sequence[Row]]
AsyncRunStatement: TypeAlias = Callable[[str, Sequence[Any]], Awaitable[Sequence[Row]]]

_EXISTS = "SELECT to_regclass('$schema.meta') IS NOT NULL, now()"
_IDENTITY = "SELECT store::text, now() FROM $schema.meta"


class WithinTarget(NamedTuple):
    """The store that a caller's connection must lead to."""

    identity: NamespaceIdentity
    schema: str
    context: CallContext


def within(connection: Any, target: WithinTarget) -> PostgresWithin | AsyncPostgresWithin:
    """Enqueue and settle on this connection, which may be blocking or async."""
    foreign = recognise(connection)
    if foreign.run is not None:
        return PostgresWithin(target, foreign.run)
    assert foreign.async_run is not None
    return AsyncPostgresWithin(target, foreign.async_run)


class PostgresWithin:
    """Enqueue and settle in the open transaction of a blocking connection."""

    def __init__(self, target: WithinTarget, run: RunStatement) -> None:
        self._scripts = _CheckedScripts(target)
        self._run = run

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        checks.check_batch(len(jobs))
        return self._run_script(enqueue.enqueue, jobs)

    def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        checks.check_batch(len(settlements))
        return self._run_script(settle.settle, settlements)

    def _run_script(self, call: Callable[..., Script[T]], *arguments: object) -> T:
        script = self._scripts.make(call, *arguments)
        rows: Sequence[Row] | None = None
        try:
            while True:
                try:
                    statement = next(script) if rows is None else script.send(rows)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                rows = self._run(self._scripts.text(statement), statement.values)
        except Exception as error:
            explained = _explained(error)
            if explained is error:
                raise
            raise explained from error


class AsyncPostgresWithin:
    """Enqueue and settle in the open transaction of an async connection."""

    def __init__(self, target: WithinTarget, run: AsyncRunStatement) -> None:
        self._scripts = _CheckedScripts(target)
        self._run = run

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        checks.check_batch(len(jobs))
        return await self._run_script(enqueue.enqueue, jobs)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        checks.check_batch(len(settlements))
        return await self._run_script(settle.settle, settlements)

    async def _run_script(self, call: Callable[..., Script[T]], *arguments: object) -> T:
        script = self._scripts.make(call, *arguments)
        rows: Sequence[Row] | None = None
        try:
            while True:
                try:
                    statement = next(script) if rows is None else script.send(rows)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                rows = await self._run(self._scripts.text(statement), statement.values)
        except Exception as error:
            explained = _explained(error)
            if explained is error:
                raise
            raise explained from error


class _CheckedScripts:
    """Makes the scripts of both. Each checks that a transaction is open, and the first one in a
    transaction also that the connection leads to the engine's store."""

    def __init__(self, target: WithinTarget) -> None:
        self._target = target
        self._transaction: object = None

    def text(self, statement: Statement) -> str:
        """The SQL with the schema's name in it, and a check of the schema's version."""
        write = plain_text if statement.any_version else checked_text
        return write(statement.text, self._target.schema)

    def make(self, call: Callable[..., Script[T]], *arguments: object) -> Script[T]:
        """The script of a call: the checks, the call itself, and its effects."""
        yield from self._check()
        result = yield from call(self._target.context, *arguments)
        yield from self._tell_children()
        return result

    def _tell_children(self) -> Script[None]:
        """Notify the children of jobs that ended here, in the same transaction."""
        endings = self._target.context.effects.endings
        while endings:
            numbers = endings.copy()
            endings.clear()
            yield from dependencies.hold_children(self._target.context, numbers)
            while (yield from dependencies.tell_children(self._target.context, numbers)):
                pass

    def _check(self) -> Script[None]:
        # `now()` does not change within a transaction, so it identifies the transaction.
        ((exists, transaction),) = yield Statement(_EXISTS, any_version=True)
        if transaction == self._transaction:
            return
        if not exists:
            raise UsageError(
                f"the connection leads to a database without the schema {self._target.schema}: "
                "use one to the engine's own database"
            )
        ((store, still),) = yield Statement(_IDENTITY)
        if store != self._target.identity.store:
            raise UsageError(
                "the connection leads to a different Holdfast store: use one to the engine's own"
                " database"
            )
        if transaction != still:
            raise UsageError(
                "no transaction is open on the connection: begin one first, and commit it after"
            )
        self._transaction = transaction


def _explained(error: Exception) -> Exception:
    code = faults.sqlstate_of(error)
    if isinstance(error, Restart) or code in faults.REPEATABLE:
        return EngineUnavailable(
            "another call changed the same jobs or queues: roll back and repeat the transaction"
            + (f" ({code})" if code else "")
        )
    if isinstance(error, HoldfastError) or code is None:
        return error
    return faults.explain(error, doubtful=False, where="the caller's connection")


class ForeignConnection(NamedTuple):
    """The function that runs a statement on a caller's connection: one of the two is set."""

    run: RunStatement | None = None
    async_run: AsyncRunStatement | None = None


def recognise(connection: Any) -> ForeignConnection:
    """Find the library of a connection; refuse an unknown one.

    Only modules that are already loaded are examined; no library is imported for this.
    """
    for library in (_asyncpg, _psycopg, _sqlalchemy, _sqlalchemy_async, _django):
        found = library(connection)
        if found is not None:
            return found
    kind = type(connection)
    raise UsageError(
        f"{kind.__module__}.{kind.__qualname__} cannot be used as a connection: use one of "
        "psycopg, asyncpg, SQLAlchemy or Django"
    )


def _asyncpg(connection: Any) -> ForeignConnection | None:
    if not _is_a(connection, "asyncpg", "Connection") and not _is_a(
        connection, "asyncpg.pool", "PoolConnectionProxy"
    ):
        return None

    async def run(text: str, values: Sequence[Any]) -> Sequence[Row]:
        rows: Sequence[Row] = await connection.fetch(text, *values)
        return rows

    return ForeignConnection(async_run=run)


def _psycopg(connection: Any) -> ForeignConnection | None:
    if _is_a(connection, "psycopg", "Connection"):

        def run(text: str, values: Sequence[Any]) -> Sequence[Row]:
            with connection.cursor(row_factory=_tuples()) as cursor:
                cursor.execute(*_named(text, values))
                rows: Sequence[Row] = cursor.fetchall() if cursor.description else []
                return rows

        return ForeignConnection(run=run)
    if not _is_a(connection, "psycopg", "AsyncConnection"):
        return None

    async def async_run(text: str, values: Sequence[Any]) -> Sequence[Row]:
        async with connection.cursor(row_factory=_tuples()) as cursor:
            await cursor.execute(*_named(text, values))
            rows: Sequence[Row] = await cursor.fetchall() if cursor.description else []
            return rows

    return ForeignConnection(async_run=async_run)


def _sqlalchemy(connection: Any) -> ForeignConnection | None:
    is_session = _is_a(connection, "sqlalchemy.orm", "Session")
    if not is_session and not _is_a(connection, "sqlalchemy.engine", "Connection"):
        return None

    def run(text: str, values: Sequence[Any]) -> Sequence[Row]:
        current = connection.connection() if is_session else connection
        result = current.exec_driver_sql(*_in_dialect(current.dialect, text, values))
        rows: Sequence[Row] = result.fetchall() if result.returns_rows else []
        return rows

    return ForeignConnection(run=run)


def _sqlalchemy_async(connection: Any) -> ForeignConnection | None:
    is_session = _is_a(connection, "sqlalchemy.ext.asyncio", "AsyncSession")
    if not is_session and not _is_a(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        return None

    async def run(text: str, values: Sequence[Any]) -> Sequence[Row]:
        current = await connection.connection() if is_session else connection
        result = await current.exec_driver_sql(*_in_dialect(current.dialect, text, values))
        rows: Sequence[Row] = result.fetchall() if result.returns_rows else []
        return rows

    return ForeignConnection(async_run=run)


def _django(connection: Any) -> ForeignConnection | None:
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

    return ForeignConnection(run=run)


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
        f"SQLAlchemy with the driver {dialect.driver} is not supported: use psycopg or asyncpg"
    )


def _named(text: str, values: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """The statement with named values, for libraries that do not support `$1`."""
    named = re.sub(r"\$(\d+)", r"%(v\1)s", text.replace("%", "%%"))
    return named, {f"v{position}": value for position, value in enumerate(values, 1)}
