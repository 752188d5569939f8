"""One poison run and its checks: good jobs arrive at a steady rate, first alone, then with poison.

The time of a good job, from enqueue to end, is read from the store, by the store's clock. The judge
functions are pure.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from holdfast import Holdfast
from holdfast.conformance.chaos.process_tree import LaunchedWorkers
from holdfast.conformance.chaos.verify import percentile
from holdfast.core.model import Job, NewJob, Queue, Status
from torture.poison_app import GOOD, POISON, Poison

QUEUE = Queue(name="default", max_attempts=2, max_crashes=2)
ROOT = Path(__file__).resolve().parent.parent
READY_MIN = 40
DRAIN_S_MAX = 60.0
GROWTH_MAX = 1.3
"""Largest ratio of the memory in the last quarter to the second one: caches fill early, leaks
continue."""
GROWTH_KB_MIN = 8_192
SLOWER_P50_MAX, SLOWER_P99_MAX = 25, 200
"""Largest slowdown of good jobs among poison. Most are hardly affected; a few shared a process
with a crash and wait until they can run alone."""
TOOK_MS_MIN = 20


class PoisonPlan(NamedTuple):
    """The sizes of a run; `rate` is good jobs per second, `calm_s` the time without poison."""

    jobs: int
    workers: int
    rate: float
    calm_s: float
    seed: int


class PoisonTrial:
    """A poison run. `run` returns the violations and fills `figures`."""

    def __init__(self, url: str, plan: PoisonPlan, home: Path) -> None:
        self._url = url
        self._plan = plan
        self._rng = random.Random(plan.seed)
        options = ["--processes", "2", "--count", str(plan.workers), "--grace", "5s"]
        app = ["worker", "run", "torture.poison_app:app"]
        # The application of the test is not part of the installed package.
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        arguments = [*app, *options, "--url", url]
        self._workers = LaunchedWorkers(home, arguments, {"PYTHONPATH": path})
        self._good: dict[str, list[str]] = {"calm": [], "poisoned": []}
        self._poison: dict[str, Poison] = {}
        self._memory_kb: list[int] = []
        self._good_due_at = 0.0
        self.figures: dict[str, Any] = {}

    @property
    def log(self) -> Path:
        return self._workers.log

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
                self._workers.start()
                await self._warm_up(app)
                await self._run_calm(app, self._plan.calm_s)
                poisoned_at = time.monotonic()
                violations = await self._poisoned(app)
                poisoned_s = time.monotonic() - poisoned_at
                store = await self._store(app)
                violations += self._workers.stop()
            finally:
                self._workers.kill()
        violations += self._judge(store)
        self.figures["seconds"] = round(time.monotonic() - started, 1)
        self.figures["poison_per_s"] = round(len(self._poison) / max(poisoned_s, 0.001), 1)
        return violations

    async def _warm_up(self, app: Holdfast) -> None:
        """Wait until every worker has run a job, so that start-up is not measured."""
        receipts = await app.enqueue_many([app.job(task, payload) for task, payload in GOOD * 4])
        deadline = time.monotonic() + DRAIN_S_MAX
        while len(self._workers.tree().child) < 2 * self._plan.workers or [
            each for each in receipts if (job := await app.get(each.id)) and not job.state.finished
        ]:
            assert time.monotonic() < deadline, (
                f"no job ran: {self._workers.log.read_text()[-2000:]}"
            )
            await asyncio.sleep(0.05)

    async def _run_calm(self, app: Holdfast, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            await self._enqueue_good(app, "calm")
            await asyncio.sleep(0.02)

    async def _poisoned(self, app: Holdfast) -> list[str]:
        """Enqueue all poison jobs, and wait until every job has ended."""
        left = self._draw()
        moved_at, unfinished_before = time.monotonic(), -1
        while True:
            self._workers.reap_orphans()
            self._sample_memory()
            await self._enqueue_good(app, "poisoned")
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
                return [
                    f"no progress for {DRAIN_S_MAX:g} s: {unfinished} jobs are waiting or leased"
                ]
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
        drawn = self._rng.choices(POISON, shares, k=max(0, self._plan.jobs - len(POISON)))
        drawn += POISON[: self._plan.jobs]
        self._rng.shuffle(drawn)
        return drawn

    async def _enqueue_good(self, app: Holdfast, when: str) -> None:
        """Enqueue the good jobs that are due since the last call."""
        now = time.monotonic()
        self._good_due_at = max(self._good_due_at, now - 1.0)
        jobs: list[NewJob] = []
        while self._good_due_at <= now:
            self._good_due_at += 1 / self._plan.rate
            task, payload = self._rng.choice(GOOD)
            jobs.append(app.job(task, payload))
        if jobs:
            self._good[when] += [receipt.id for receipt in await app.enqueue_many(jobs)]

    async def _enqueue_poison(self, app: Holdfast, given: list[Poison]) -> None:
        jobs = [app.job(each.task, each.payload, timeout=each.timeout) for each in given]
        receipts = await app.enqueue_many(jobs)
        assert all(receipt.status is Status.NEW for receipt in receipts)
        for receipt, each in zip(receipts, given, strict=True):
            self._poison[receipt.id] = each

    def _sample_memory(self) -> None:
        sizes = [_resident_kb(pid) for pid in self._workers.tree().supervisor]
        if len(sizes) == self._plan.workers:
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
            "seed": self._plan.seed,
            "workers": self._plan.workers,
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


def judge_good(ids: Iterable[str], store: Mapping[str, Job]) -> list[str]:
    """Check that each good job is done and charged one attempt."""
    violations = []
    for each in ids:
        job = store.get(each)
        if job is None:
            violations.append(f"good job {each} is lost")
        elif job.state != "done":
            violations.append(f"good job {each} ({job.task}) is {job.state}: {job.events}")
        elif job.attempt != 1:
            violations.append(
                f"good job {each} ({job.task}) was charged {job.attempt} attempts: {job.events}"
            )
    return violations


def judge_poison(given: Mapping[str, Poison], store: Mapping[str, Job], queue: Queue) -> list[str]:
    """Check that each poison job is dead with the expected reason and kind of failure."""
    violations = []
    for each, poison in given.items():
        job = store.get(each)
        if job is None:
            violations.append(f"poison {poison.task} {each} is lost")
            continue
        last = job.failures[-1].failure if job.failures else None
        found = (job.state, job.reason, last.kind if last else None)
        if found != ("dead", poison.reason, poison.kind):
            wanted = f"dead, {poison.reason}, {poison.kind}"
            violations.append(f"poison {poison.task} {each} is {found}, not {wanted}: {job.events}")
        elif job.attempt > queue.max_attempts:
            violations.append(f"poison {poison.task} {each} had {job.attempt} attempts")
    return violations


def judge_memory(samples_kb: list[int]) -> list[str]:
    """Check that the memory of the supervisors does not grow."""
    before, after = early(samples_kb), late(samples_kb)
    if after > max(before * GROWTH_MAX, before + GROWTH_KB_MIN):
        return [f"the supervisors grew from {before / 1024:.0f} to {after / 1024:.0f} MB"]
    return []


def judge_promptness(calm_ms: list[float], poisoned_ms: list[float]) -> list[str]:
    """Check the slowdown of good jobs, as a ratio because machines differ; inputs are sorted."""
    violations = []
    for share, most in ((0.5, SLOWER_P50_MAX), (0.99, SLOWER_P99_MAX)):
        alone = max(percentile(calm_ms, share), TOOK_MS_MIN)
        beside = percentile(poisoned_ms, share)
        if beside > alone * most:
            violations.append(
                f"good jobs took {beside:.0f} ms with poison and {alone:.0f} ms alone at"
                f" {share:.0%}: more than {most} times as long"
            )
    return violations


def early(samples: list[int]) -> float:
    """Median of the second quarter."""
    quarter = len(samples) // 4
    return median(samples[quarter : 2 * quarter] or [0])


def late(samples: list[int]) -> float:
    """Median of the last quarter."""
    return median(samples[-(len(samples) // 4) :] or [0])
