"""One trial with poison: good jobs come at a steady rate, first alone, then beside the poison.

How long a good job takes from its enqueue to its end is read from the store, by the store's clock.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import Holdfast
from holdfast.chaos.fleet import Fleet
from holdfast.chaos.judge import percentile
from holdfast.core.model import Job, NewJob, Queue, Status
from torture.worker_harm import (
    early,
    judge_good,
    judge_memory,
    judge_poison,
    judge_promptness,
    late,
)
from torture.worker_poison import GOOD, POISON, Poison

QUEUE = Queue(name="default", max_attempts=2, max_crashes=2)
ROOT = Path(__file__).resolve().parent.parent
READY_MIN = 40
DRAIN_S_MAX = 60.0


class Dose(NamedTuple):
    jobs: int
    workers: int
    rate: float
    calm_s: float
    seed: int


class Trial:
    """`figures` are filled by `run`, which gives the violations."""

    def __init__(self, url: str, dose: Dose, home: Path) -> None:
        self._url = url
        self._dose = dose
        self._dice = random.Random(dose.seed)
        options = ["--processes", "2", "--count", str(dose.workers), "--grace", "5s"]
        app = ["worker", "run", "torture.worker_poison:app"]
        # Where its application lies is not installed with the package.
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        arguments = [*app, *options, "--url", url]
        self._fleet = Fleet(home, arguments, {"PYTHONPATH": path})
        self._good: dict[str, list[str]] = {"calm": [], "poisoned": []}
        self._poison: dict[str, Poison] = {}
        self._memory_kb: list[int] = []
        self._good_due_at = 0.0
        self.figures: dict[str, Any] = {}

    @property
    def log(self) -> Path:
        return self._fleet.log

    async def run(self) -> list[str]:
        started = time.monotonic()
        async with Holdfast(self._url) as app:
            await app.declare(
                QUEUE.name,
                max_attempts=QUEUE.max_attempts,
                max_crashes=QUEUE.max_crashes,
                backoff="constant(20ms)",
            )
            try:
                self._fleet.start()
                await self._warm_up(app)
                await self._breathe(app, self._dose.calm_s)
                poisoned_at = time.monotonic()
                violations = await self._poisoned(app)
                poisoned_s = time.monotonic() - poisoned_at
                store = await self._store(app)
                violations += self._fleet.stop()
            finally:
                self._fleet.kill()
        violations += self._judge(store)
        self.figures["seconds"] = round(time.monotonic() - started, 1)
        self.figures["poison_per_s"] = round(len(self._poison) / max(poisoned_s, 0.001), 1)
        return violations

    async def _warm_up(self, app: Holdfast) -> None:
        """Until every worker has run something: how fast processes start is measured elsewhere."""
        receipts = await app.enqueue_many([app.job(task, payload) for task, payload in GOOD * 4])
        deadline = time.monotonic() + DRAIN_S_MAX
        while len(self._fleet.tree().child) < 2 * self._dose.workers or [
            each for each in receipts if (job := await app.get(each.id)) and not job.state.finished
        ]:
            assert time.monotonic() < deadline, f"no job ran: {self._fleet.log.read_text()[-2000:]}"
            await asyncio.sleep(0.05)

    async def _breathe(self, app: Holdfast, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            await self._feed_good(app, "calm")
            await asyncio.sleep(0.02)

    async def _poisoned(self, app: Holdfast) -> list[str]:
        """Until all poison is given and everything has ended."""
        left = self._draw()
        moved_at, unfinished_before = time.monotonic(), -1
        while True:
            self._fleet.bury()
            self._watch_memory()
            await self._feed_good(app, "poisoned")
            [view] = [each for each in await app.queues() if each.queue.name == QUEUE.name]
            room = READY_MIN - view.ready
            if left and room > 0:
                await self._enqueue_poison(app, [left.pop() for _ in range(min(room, len(left)))])
            unfinished = view.ready + view.delayed + view.leased
            given = sum(map(len, (self._poison, self._good["calm"], self._good["poisoned"])))
            if not left and view.dead >= len(self._poison):
                break
            if given - unfinished != unfinished_before:
                moved_at, unfinished_before = time.monotonic(), given - unfinished
            if time.monotonic() - moved_at > DRAIN_S_MAX:
                return [f"nothing moves any more: {unfinished} jobs wait or run"]
            await asyncio.sleep(0.05)
        return await self._drain(app)

    async def _drain(self, app: Holdfast) -> list[str]:
        deadline = time.monotonic() + DRAIN_S_MAX
        while time.monotonic() < deadline:
            views = await app.queues()
            if not sum(view.ready + view.delayed + view.leased for view in views):
                return []
            await asyncio.sleep(0.05)
        return ["the good jobs did not finish"]

    def _draw(self) -> list[Poison]:
        shares = [poison.share for poison in POISON]
        drawn = self._dice.choices(POISON, shares, k=max(0, self._dose.jobs - len(POISON)))
        drawn += POISON[: self._dose.jobs]
        self._dice.shuffle(drawn)
        return drawn

    async def _feed_good(self, app: Holdfast, when: str) -> None:
        """Those that fell due since the last time."""
        now = time.monotonic()
        self._good_due_at = max(self._good_due_at, now - 1.0)
        jobs: list[NewJob] = []
        while self._good_due_at <= now:
            self._good_due_at += 1 / self._dose.rate
            task, payload = self._dice.choice(GOOD)
            jobs.append(app.job(task, payload))
        if jobs:
            self._good[when] += [receipt.id for receipt in await app.enqueue_many(jobs)]

    async def _enqueue_poison(self, app: Holdfast, given: list[Poison]) -> None:
        jobs = [app.job(each.task, each.payload, timeout=each.timeout) for each in given]
        receipts = await app.enqueue_many(jobs)
        assert all(receipt.status is Status.NEW for receipt in receipts)
        for receipt, each in zip(receipts, given, strict=True):
            self._poison[receipt.id] = each

    def _watch_memory(self) -> None:
        sizes = [_resident_kb(pid) for pid in self._fleet.tree().supervisor]
        if len(sizes) == self._dose.workers:
            self._memory_kb.append(max(sizes))

    async def _store(self, app: Holdfast) -> dict[str, Job]:
        ids = [*self._poison, *self._good["calm"], *self._good["poisoned"]]
        return {each: job for each in ids if (job := await app.get(each)) is not None}

    def _judge(self, store: dict[str, Job]) -> list[str]:
        good = [each for ids in self._good.values() for each in ids]
        calm = sorted(_took_ms(self._good["calm"], store))
        poisoned = sorted(_took_ms(self._good["poisoned"], store))
        violations = [
            *judge_good(good, store),
            *judge_poison(self._poison, store, QUEUE),
            *judge_memory(self._memory_kb),
            *judge_promptness(calm, poisoned),
        ]
        reasons = Counter(str(store[each].reason) for each in self._poison if each in store)
        self.figures = {
            "seed": self._dose.seed,
            "workers": self._dose.workers,
            "poison": len(self._poison),
            "good": len(good),
            "reasons": dict(reasons),
            "good_ms_p50_alone": percentile(calm, 0.5),
            "good_ms_p99_alone": percentile(calm, 0.99),
            "good_ms_p50": percentile(poisoned, 0.5),
            "good_ms_p99": percentile(poisoned, 0.99),
            "supervisor_mb_early": round(early(self._memory_kb) / 1024),
            "supervisor_mb_late": round(late(self._memory_kb) / 1024),
        }
        return violations


def _took_ms(ids: Iterable[str], store: dict[str, Job]) -> list[float]:
    jobs = [store[each] for each in ids if each in store]
    return [job.finished_at - job.created_at for job in jobs if job.finished_at is not None]


def _resident_kb(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * 4
