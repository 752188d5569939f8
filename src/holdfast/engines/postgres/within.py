"""Enqueue and settle in a transaction of the caller's own, on the connection that is in it.

Nothing is begun, committed or rolled back here, and nothing is imported for it: a connection is
recognised by the libraries that are loaded already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from holdfast.core import checks
from holdfast.core.model import NewJob, Receipt
from holdfast.core.verdict import Outcome, Settlement
from holdfast.engines.postgres import edges, enqueuing, faults, settling
from holdfast.engines.postgres.callers import AsyncRun, Run, recognise
from holdfast.engines.postgres.schemas import Identity, quoted
from holdfast.engines.postgres.steps import Again, Ask, Row, Steps, Store, T
from holdfast.errors import EngineUnavailable, HoldfastError, UsageError

_EXISTS = "SELECT to_regclass('$schema.meta') IS NOT NULL, now()"
_IDENTITY = "SELECT store::text, now() FROM $schema.meta"


class Home(NamedTuple):
    """The store that a caller's connection must lead to."""

    identity: Identity
    schema: str
    store: Store


class Within:
    """For one open transaction of a blocking connection."""

    def __init__(self, home: Home, run: Run) -> None:
        self._talk = _Talk(home)
        self._run = run

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        checks.check_batch(len(jobs))
        return self._converse(enqueuing.enqueue, jobs)

    def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        checks.check_batch(len(settlements))
        return self._converse(settling.settle, settlements)

    def _converse(self, talk: Callable[..., Steps[T]], *arguments: object) -> T:
        steps = self._talk.begin(talk, *arguments)
        rows: Sequence[Row] | None = None
        try:
            while True:
                try:
                    ask = next(steps) if rows is None else steps.send(rows)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                rows = self._run(self._talk.text(ask), ask.values)
        except Exception as error:
            explained = _explained(error)
            if explained is error:
                raise
            raise explained from error


class AsyncWithin:
    """For one open transaction of a connection whose calls are awaited."""

    def __init__(self, home: Home, run: AsyncRun) -> None:
        self._talk = _Talk(home)
        self._run = run

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        checks.check_batch(len(jobs))
        return await self._converse(enqueuing.enqueue, jobs)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        checks.check_batch(len(settlements))
        return await self._converse(settling.settle, settlements)

    async def _converse(self, talk: Callable[..., Steps[T]], *arguments: object) -> T:
        steps = self._talk.begin(talk, *arguments)
        rows: Sequence[Row] | None = None
        try:
            while True:
                try:
                    ask = next(steps) if rows is None else steps.send(rows)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                rows = await self._run(self._talk.text(ask), ask.values)
        except Exception as error:
            explained = _explained(error)
            if explained is error:
                raise
            raise explained from error


def within(connection: Any, home: Home) -> Within | AsyncWithin:
    caller = recognise(connection)
    if caller.run is not None:
        return Within(home, caller.run)
    assert caller.async_run is not None
    return AsyncWithin(home, caller.async_run)


class _Talk:
    """What both have in common: each call looks whether the transaction is open, and the first
    one in it also where the connection leads."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._begun: object = None

    def text(self, ask: Ask) -> str:
        return ask.statement.replace("$schema", quoted(self._home.schema))

    def begin(self, talk: Callable[..., Steps[T]], *arguments: object) -> Steps[T]:
        yield from self._check()
        result = yield from talk(self._home.store, *arguments)
        yield from self._part()
        return result

    def _part(self) -> Steps[None]:
        """Children of what ended here are told here: they are part of the same transaction."""
        endings = self._home.store.duties.endings
        while endings:
            told = endings.copy()
            endings.clear()
            while (yield from edges.release(self._home.store, told)):
                pass

    def _check(self) -> Steps[None]:
        ((exists, begun),) = yield Ask(_EXISTS)
        if begun == self._begun:
            return
        if not exists:
            raise UsageError(
                f"the connection leads to a database without the schema {self._home.schema}: "
                "use one to the engine's own database"
            )
        ((store, still_begun),) = yield Ask(_IDENTITY)
        if store != self._home.identity.store:
            raise UsageError(
                "the connection leads to another Holdfast than the engine: "
                "use one to the engine's own database"
            )
        # Within one transaction its instant stands still.
        if begun != still_begun:
            raise UsageError(
                "the connection is in no transaction: begin one first, and commit it afterwards"
            )
        self._begun = begun


def _explained(error: Exception) -> Exception:
    code = faults.sqlstate_of(error)
    if isinstance(error, Again) or code in faults.REPEATABLE:
        return EngineUnavailable(
            "other calls were faster: roll back, and repeat the transaction"
            + (f" ({code})" if code else "")
        )
    if isinstance(error, HoldfastError) or code is None:
        return error
    return faults.explain(error, doubtful=False, where="the caller's connection")
