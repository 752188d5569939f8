"""Circuit breakers, as one worker sees and updates them. All workers share their records.

Each check reads the records, and changes a record only on the version that it read.
It leases and settles nothing itself: it calls `BreakerActions`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple

from holdfast.core import bounds
from holdfast.core import breaker as rules
from holdfast.core.breaker import (
    HOST_PREFIX,
    NO_RESULTS,
    PROBE_MS,
    TASK_PREFIX,
    AttemptResults,
    Breaker,
    BreakerRecord,
    BreakerState,
)
from holdfast.core.checks import clean_text
from holdfast.core.model import WEBHOOK_TASK, Failure, Job
from holdfast.core.verdict import Release
from holdfast.engines.base import Engine
from holdfast.ops.breakers import BreakerChange, BreakerRecords, StoredBreaker
from holdfast.process import boot_s
from holdfast.worker.supervisor.held_leases import HeldLease
from holdfast.worker.supervisor.settle import EndedBatch
from holdfast.worker.webhooks.webhook import host_of, is_answer
from holdfast.worker.wire import AskedRetry, Ending, Raised, Returned, TaskInfo

_HOLD_S = PROBE_MS / 1000 * 2 / 3
"""The time a worker has to find a job for the probe; its right to probe lasts longer."""
_REST_S = PROBE_MS / 1000
"""How long a worker that found no job leaves the probe to others."""

_RECORDS_MAX = 1_000
_TIDIED_MAX = 10


class BreakerActions(NamedTuple):
    """Callbacks from the breaker check to the supervisor."""

    has_room: Callable[[str], bool]
    """True if the worker has room for a job of this task."""
    take_one: Callable[[str], Awaitable[list[HeldLease]]]
    """Lease one job of a task with an open breaker, if there is room and such a job."""
    start: Callable[[list[HeldLease]], None]
    release: Callable[[HeldLease, Release], None]
    shut_out: Callable[[frozenset[str]], None]
    """Stop leasing jobs of these tasks, and release those that have not started."""


class BreakerProbe:
    """The right to probe with one job, and that job."""

    def __init__(self, held: HeldLease | None = None) -> None:
        self.until: float = boot_s() + _HOLD_S
        self.held = held
        self.good: bool | None = None
        self.text = ""

    @property
    def is_running(self) -> bool:
        """True while its job has no verdict and is not lost."""
        return self.held is not None and not self.held.lost and self.held.verdict is None


class BreakerCheck:
    """`id` is that of the worker's start; `hosts` is the policy for each host of webhooks."""

    def __init__(
        self, engine: Engine, id: str, actions: BreakerActions, hosts: Breaker | None
    ) -> None:
        self.sooner: Final = asyncio.Event()
        """Set to check at once: a result may open or close a breaker."""
        self._id = id
        self._actions = actions
        self._hosts = hosts
        self._tasks: dict[str, Breaker] = {}
        self._records = BreakerRecords(engine, self._policy)
        self._results: dict[str, AttemptResults] = {}
        self._probes: dict[str, BreakerProbe] = {}
        self._kept: dict[str, HeldLease] = {}
        self._rest_until: dict[str, float] = {}
        self._shut: frozenset[str] = frozenset()
        self.is_used: bool = hosts is not None
        """False if there is nothing to check: then the supervisor need not call `admit` and
        `record`."""
        self._closed = False

    def learn(self, tasks: Mapping[str, TaskInfo]) -> None:
        """The tasks that the children can run, some with a breaker."""
        found = {TASK_PREFIX + name: info.breaker for name, info in tasks.items()}
        self._tasks = {key: policy for key, policy in found.items() if policy is not None}
        self.is_used = bool(self._tasks) or self._hosts is not None
        self.sooner.set()

    def admit(self, leased: list[HeldLease]) -> None:
        """Start leased jobs, except those behind an open breaker: they are released. The first job
        for a host after its cool-down is held until it is known which worker may probe.
        """
        if not self.is_used:
            self._actions.start(leased)
            return
        admitted: list[HeldLease] = []
        for held in leased:
            key = self._key(held.job)
            known = self._records.known.get(key or "")
            if known is None or key is None or known.record.state is BreakerState.CLOSED:
                admitted.append(held)
            elif self._may_keep(key, known):
                self._kept[key] = held
                self.sooner.set()
            else:
                self._release(key, held)
        if admitted:
            self._actions.start(admitted)

    def record(self, ended: Iterable[EndedBatch]) -> None:
        """Count jobs that ended. An ending that the handler requested, and a failure that is the
        job's own fault, count neither for nor against the task.
        """
        if self.is_used:
            for jobs, ending in ended:
                for held in jobs:
                    self._record(held, ending)

    def _record(self, held: HeldLease, ending: Ending) -> None:
        match ending:
            case Returned():
                self._count(held, True, "")
            case Raised(failure=failure, fatal=False):
                answered = held.job.task == WEBHOOK_TASK and is_answer(failure)
                self._count(held, answered, _text(failure))
            case AskedRetry(failure=failure) if held.job.task == WEBHOOK_TASK:
                # The receiver answered with Retry-After: it is down, or has too much to do.
                self._count(held, False, _text(failure))
            case _:
                self._count(held, None, "")

    def crashed(self, held: HeldLease, failure: Failure) -> None:
        """A job that ran alone killed its process."""
        self._count(held, False, _text(failure))

    def close(self) -> list[HeldLease]:
        """Stop probing; returns the jobs held here."""
        self._closed = True
        kept, self._kept = list(self._kept.values()), {}
        return kept

    async def sync(self) -> None:
        """Write this worker's results to the records, read those of others, and act on them."""
        if not self.is_used:
            self._apply()
            return
        await self._records.load()
        await self._tidy()
        for key in self._tasks:
            if key not in self._records.known:
                await self._records.change(key, lambda record, _: record)
        for key in list(self._results):
            results, policy = self._results.pop(key), self._policy(key)
            if policy is not None:
                await self._records.change(key, _counting(results, policy))
        self._apply()
        await self._end_probes()
        if not self._closed:
            await self._begin_probes()
            await self._decide_kept()
        self._apply()

    def _key(self, job: Job) -> str | None:
        """The key of the breaker that guards a job, if there is one."""
        if job.task == WEBHOOK_TASK and self._hosts is not None:
            return HOST_PREFIX + host_of(job.payload)
        key = TASK_PREFIX + job.task
        return key if key in self._tasks else None

    def _policy(self, key: str) -> Breaker | None:
        return self._hosts if key.startswith(HOST_PREFIX) else self._tasks.get(key)

    def _count(self, held: HeldLease, good: bool | None, text: str) -> None:
        key = self._key(held.job)
        policy = None if key is None else self._policy(key)
        if key is None or policy is None:
            return
        probe = self._probes.get(key)
        if probe is not None and probe.held is held:
            probe.held, probe.good, probe.text = None, good, text
            self.sooner.set()
            return
        if good is None:
            return
        known, results = self._records.known.get(key), self._results.get(key, NO_RESULTS)
        if known is None and len(self._records.known) + len(self._results) >= _RECORDS_MAX:
            # Producers choose the hosts: beyond this many failing at once, no more are tracked.
            return
        streak = known.record.streak if known else 0
        if good and policy.share is None and not streak and results == NO_RESULTS:
            # The usual case: nothing would change.
            return
        self._results[key] = results = results.plus(good=good, text=text)
        if streak + results.last >= policy.failures:
            self.sooner.set()

    async def _tidy(self) -> None:
        """Close the breakers of hosts that received no request for a long time."""
        old = [
            key
            for key, known in self._records.known.items()
            if key.startswith(HOST_PREFIX)
            and not known.record.by
            and known.age_ms > known.record.open_ms + bounds.HOUR_MS
        ]
        for key in old[:_TIDIED_MAX]:
            await self._records.change(key, lambda record, _: rules.closed(record))

    def _apply(self) -> None:
        known = self._records.known
        shut = frozenset(
            key.removeprefix(TASK_PREFIX)
            for key in self._tasks
            if key in known and known[key].record.state is not BreakerState.CLOSED
        )
        if shut != self._shut:
            self._shut = shut
            self._actions.shut_out(shut)

    async def _end_probes(self) -> None:
        for key, probe in list(self._probes.items()):
            if probe.good is not None:
                await self._records.change(key, _judging(self._id, probe.good, probe.text))
                del self._probes[key]
            elif not self._is_mine(key):
                del self._probes[key]
            elif probe.is_running:
                if self._records.known[key].age_ms > PROBE_MS / 3:
                    await self._records.change(key, lambda record, _: record, anyway=True)
            elif boot_s() >= probe.until:
                del self._probes[key]
                if key in self._tasks:
                    self._rest_until[key] = boot_s() + _REST_S

    async def _begin_probes(self) -> None:
        for key in self._tasks:
            known = self._records.known.get(key)
            is_rested = boot_s() >= self._rest_until.get(key, 0.0)
            may_probe = known is not None and rules.may_probe(known.record, known.age_ms)
            can_run = may_probe and self._actions.has_room(key.removeprefix(TASK_PREFIX))
            if can_run and is_rested and key not in self._probes and await self._win(key):
                self._probes[key] = BreakerProbe()
            probe = self._probes.get(key)
            if probe is None or probe.is_running or probe.good is not None:
                continue
            for held in await self._actions.take_one(key.removeprefix(TASK_PREFIX)):
                if self._closed:
                    self._release(key, held)
                    continue
                probe.held = held
                self._actions.start([held])

    async def _decide_kept(self) -> None:
        """Decide on the jobs held for a host after its cool-down: each becomes the probe, or is
        released.
        """
        for key in list(self._kept):
            known = self._records.known.get(key)
            shut = known is not None and known.record.state is not BreakerState.CLOSED
            won = shut and await self._win(key)
            # Not earlier: if the store is unreachable or the worker ends, the job is still here.
            held = self._kept.pop(key, None)
            if held is None or held.lost:
                continue
            if won:
                self._probes[key] = BreakerProbe(held)
            if won or not shut:
                self._actions.start([held])
            else:
                self._release(key, held)

    def _may_keep(self, key: str, known: StoredBreaker) -> bool:
        if self._closed or not key.startswith(HOST_PREFIX) or key in self._kept:
            return False
        return key not in self._probes and rules.may_probe(known.record, known.age_ms)

    def _release(self, key: str, held: HeldLease) -> None:
        """Release without counting the attempt. A job for a host becomes due again after the
        cool-down, spread over time.
        """
        known = self._records.known.get(key) or StoredBreaker(BreakerRecord(), 0, boot_s())
        delay_ms = 0
        if key.startswith(HOST_PREFIX):
            spread_ms = random.random() * max(known.record.open_ms, bounds.SECOND_MS)
            delay_ms = (rules.left_ms(known.record, known.age_ms) or 0) + round(spread_ms)
        text = rules.describe(known.record, rules.title(key))
        self._actions.release(held, Release(text, delay_ms, unstarted=True))

    def _is_mine(self, key: str) -> bool:
        known = self._records.known.get(key)
        record = known.record if known else BreakerRecord()
        return record.state is BreakerState.HALF_OPEN and record.prober == self._id

    async def _win(self, key: str) -> bool:
        """Try to get the right to probe, which only one worker has."""

        def take(record: BreakerRecord, age_ms: int) -> BreakerRecord:
            can_run = rules.may_probe(record, age_ms)
            return rules.probing(record, self._id) if can_run else record

        return await self._records.change(key, take) and self._is_mine(key)


def _counting(results: AttemptResults, policy: Breaker) -> BreakerChange:
    return lambda record, age_ms: rules.count_results(record, results, policy, age_ms)


def _judging(id: str, good: bool, text: str) -> BreakerChange:
    return lambda record, _: rules.probed(record, id, good=good, text=text)


def _text(failure: Failure) -> str:
    return clean_text(": ".join(filter(None, (failure.type, failure.message))))
