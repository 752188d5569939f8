"""Enqueues and settles inside a transaction of the client's own, as programs do with `within`.

The transaction stays open for a while, so that other clients meet its locks, and sometimes rolls
back. A connection serves one transaction: several calls in one could deadlock with other clients.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import apsw
import asyncpg

from holdfast.core.model import NewJob, Receipt
from holdfast.core.verdict import Outcome, Settlement
from holdfast.engines.base import Engine
from holdfast.engines.extras import Transactional, extra
from holdfast.engines.postgres.pool import FAILURES
from holdfast.engines.wrapper import Wrapper
from holdfast.errors import EngineUnavailable, OutcomeUnknown

HOLD_S_MAX = {"sqlite": 0.05, "postgres": 0.4}
"""A transaction on SQLite stops every other writer; one on PostgreSQL only those of its jobs."""

ROLLBACK_SHARE = 0.2

Call = Callable[[Any], Any]


class OwnTransactions(Wrapper):
    """An open engine that enqueues and settles in transactions of the caller."""

    def __init__(self, engine: Engine, name: str, url: str, rng: random.Random) -> None:
        super().__init__(engine)
        transactional = extra(engine, Transactional)
        assert transactional is not None
        self._within = transactional.within
        self._name = name
        self._url = url
        self._rng = rng

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        receipts: list[Receipt] = await self._run(lambda within: within.enqueue(jobs))
        return receipts

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        outcomes: list[Outcome] = await self._run(lambda within: within.settle(settlements))
        return outcomes

    async def _run(self, call: Call) -> Any:
        hold_s = self._rng.random() * HOLD_S_MAX[self._name]
        rolls_back = self._rng.random() < ROLLBACK_SHARE
        if self._name == "sqlite":
            answer = await asyncio.to_thread(self._run_on_sqlite, call, hold_s, rolls_back)
        else:
            answer = await self._run_on_postgres(call, hold_s, rolls_back)
        if rolls_back:
            raise EngineUnavailable("the caller rolled back: nothing was changed")
        return answer

    def _run_on_sqlite(self, call: Call, hold_s: float, rolls_back: bool) -> Any:
        connection = apsw.Connection(self._url.removeprefix("sqlite:///"))
        try:
            connection.set_busy_timeout(5_000)
            try:
                connection.execute("BEGIN IMMEDIATE")
                answer = call(self._within(connection))
                time.sleep(hold_s)
            except apsw.Error as error:
                raise EngineUnavailable(f"SQLite failed: {error}") from error
            try:
                connection.execute("ROLLBACK" if rolls_back else "COMMIT")
            except apsw.Error as error:
                raise OutcomeUnknown(f"SQLite failed: {error}") from error
            return answer
        finally:
            connection.close()

    async def _run_on_postgres(self, call: Call, hold_s: float, rolls_back: bool) -> Any:
        try:
            connection = await asyncpg.connect(self._url, command_timeout=30)
        except FAILURES as error:
            raise EngineUnavailable(f"PostgreSQL failed: {error}") from error
        try:
            try:
                await connection.execute("BEGIN")
                answer = await call(self._within(connection))
                await asyncio.sleep(hold_s)
            except FAILURES as error:
                raise EngineUnavailable(f"PostgreSQL failed: {error}") from error
            try:
                await connection.execute("ROLLBACK" if rolls_back else "COMMIT")
            except FAILURES as error:
                raise OutcomeUnknown(f"PostgreSQL failed: {error}") from error
            return answer
        finally:
            connection.terminate()
