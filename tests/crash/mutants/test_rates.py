"""A rate whose permit is given back when its holder crashes. Engines have no rates of their own
yet: the limiter is a small workload over the engine's records, and the checker sees its grants."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from holdfast.conformance.checker import Findings, check
from holdfast.conformance.history import HistoryLine, Journal
from holdfast.conformance.simulate import MakeEngine
from holdfast.core.model import Record
from holdfast.engines.base import Engine, Saved
from holdfast.testing.clock import ManualClock

LIMIT, PER_MS = 3, 1_000


class Limiter:
    """The instants of the latest grants in one record, changed by compare-and-set."""

    def __init__(self, engine: Engine, clock: ManualClock, *, refunds: bool) -> None:
        self.engine = engine
        self.clock = clock
        self.refunds = refunds

    async def take(self) -> bool:
        grants, version = await self._read()
        now = self.clock.boot_ms()
        grants = [at for at in grants if at > now - PER_MS]
        return len(grants) < LIMIT and await self._write([*grants, now], version)

    async def crashed(self) -> None:
        """The mistake: what the dead one had begun may have reached the other side."""
        if self.refunds:
            grants, version = await self._read()
            await self._write(grants[:-1], version)

    async def _read(self) -> tuple[list[int], int]:
        records = await self.engine.load("settings", limit=1)
        if not records:
            return [], 0
        return msgspec.json.decode(records[0].value or b"[]", type=list[int]), records[0].version

    async def _write(self, grants: list[int], version: int) -> bool:
        value = msgspec.json.encode(grants)
        record = Record(kind="settings", key="rate/api", value=value, version=version)
        return await self.engine.save([record]) == [Saved.SAVED]


@pytest.mark.parametrize("seed", range(3))
async def test_a_refunded_permit_is_caught(fresh: Callable[[], MakeEngine], seed: int) -> None:
    sound = await call_out(fresh(), seed, refunds=False)
    assert sound.clean, sound.violations
    spoilt = await call_out(fresh(), seed, refunds=True)
    assert "I12" in spoilt.rules, spoilt


async def call_out(make: MakeEngine, seed: int, *, refunds: bool) -> Findings:
    dice = random.Random(seed)
    lines: list[HistoryLine] = []
    clock = ManualClock()
    engine = make(clock)
    await engine.open()
    limiter = Limiter(engine, clock, refunds=refunds)
    journal = Journal("caller", lines.append, lambda: clock.boot_ms() * 1_000_000 + len(lines))
    for _ in range(60):
        clock.advance(dice.randint(1, 200))
        if await limiter.take():
            journal.note("rate", name="api", limit=LIMIT, per_ms=PER_MS)
            if dice.random() < 0.4:
                await limiter.crashed()
    await engine.close()
    return check(lines)
