"""The circuit breakers of one worker: what it saw goes into records that all workers share.

It reads them at every look and changes them only on the version that was read. It leases nothing
and settles nothing itself: its doors do.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from holdfast.core import breaker as rules
from holdfast.core import limits
from holdfast.core.breaker import (
    HOST_PREFIX,
    NO_RESULTS,
    PROBE_MS,
    TASK_PREFIX,
    Breaker,
    BreakerRecord,
    BreakerState,
    Results,
)
from holdfast.core.checks import clean_text
from holdfast.core.model import Failure, Job
from holdfast.core.verdict import Release
from holdfast.engines.base import Engine
from holdfast.worker.breaker_book import Book, Change, Known
from holdfast.worker.clock import boot_s
from holdfast.worker.hand import Held
from holdfast.worker.webhook import WEBHOOK, host_of, is_answer
from holdfast.worker.wire import Ending, Raised, Returned, TaskInfo

_HOLD_S = PROBE_MS / 1000 * 2 / 3
"""How long a worker looks for a job to probe with, well within the time that the right lasts."""
_REST_S = PROBE_MS / 1000
"""A worker that found none lets others have the right first."""

_RECORDS_MAX = 1_000
_TIDIED_MAX = 10


class Doors(NamedTuple):
    """What the worker does for its breakers."""

    has_room: Callable[[str], bool]
    """For a job of this task."""
    take_one: Callable[[str], Awaitable[list[Held]]]
    """Lease one job of a task that is left out otherwise, if there is room and such a job."""
    start: Callable[[list[Held]], None]
    give_back: Callable[[Held, Release], None]
    shut: Callable[[frozenset[str]], None]
    """Lease nothing of these tasks, and give back what has not started."""


class Probe:
    """The right to try one job, and that job."""

    def __init__(self, held: Held | None = None) -> None:
        self.until = boot_s() + _HOLD_S
        self.held = held
        self.good: bool | None = None
        self.text = ""

    @property
    def in_hand(self) -> bool:
        return self.held is not None and not self.held.lost and self.held.verdict is None


class Breakers:
    """`id` is of this start of the worker; `hosts` is the policy for each host of a webhook."""

    def __init__(self, engine: Engine, id: str, doors: Doors, hosts: Breaker | None) -> None:
        self.sooner = asyncio.Event()
        """Look at once: something came that may open or close one."""
        self._id = id
        self._doors = doors
        self._hosts = hosts
        self._tasks: dict[str, Breaker] = {}
        self._book = Book(engine, self._policy)
        self._results: dict[str, Results] = {}
        self._probes: dict[str, Probe] = {}
        self._parked: dict[str, Held] = {}
        self._rests: dict[str, float] = {}
        self._shut: frozenset[str] = frozenset()
        self._closed = False

    @property
    def _is_used(self) -> bool:
        return bool(self._tasks) or self._hosts is not None

    def learn(self, tasks: Mapping[str, TaskInfo]) -> None:
        found = {TASK_PREFIX + name: info.breaker for name, info in tasks.items()}
        self._tasks = {key: policy for key, policy in found.items() if policy is not None}
        self.sooner.set()

    def admit(self, taken: list[Held]) -> None:
        """What was leased: most is started. What comes for a host that is left alone goes back for
        a while; the first when that is over is kept until it is known whose probe it is."""
        if not self._is_used:
            self._doors.start(taken)
            return
        through: list[Held] = []
        for held in taken:
            key = self._key(held.job)
            known = self._book.known.get(key or "")
            if known is None or key is None or known.record.state is BreakerState.CLOSED:
                through.append(held)
            elif self._may_park(key, known):
                self._parked[key] = held
                self.sooner.set()
            else:
                self._give_back(key, held)
        if through:
            self._doors.start(through)

    def ended(self, held: Held, ending: Ending) -> None:
        """A job came to this. What its handler asked for on purpose, and what is the job's own
        fault, speaks neither for nor against the task."""
        match ending:
            case _ if not self._is_used:
                pass
            case Returned():
                self._count(held, True, "")
            case Raised(failure=failure, fatal=False):
                answered = held.job.task == WEBHOOK and is_answer(failure)
                self._count(held, answered, _text(failure))
            case _:
                self._count(held, None, "")

    def crashed(self, held: Held, failure: Failure) -> None:
        self._count(held, False, _text(failure))

    def close(self) -> list[Held]:
        """Probe no more; the jobs that wait here."""
        self._closed = True
        parked, self._parked = list(self._parked.values()), {}
        return parked

    async def look(self) -> None:
        """Tell what was seen, hear what others saw, and act on it."""
        if not self._is_used:
            self._apply()
            return
        await self._book.load()
        await self._tidy()
        for key in self._tasks:
            if key not in self._book.known:
                await self._book.change(key, lambda record, _: record)
        for key in list(self._results):
            results, policy = self._results.pop(key), self._policy(key)
            if policy is not None:
                await self._book.change(key, _counting(results, policy))
        self._apply()
        await self._end_probes()
        if not self._closed:
            await self._begin_probes()
            await self._unpark()
        self._apply()

    def _key(self, job: Job) -> str | None:
        """Of the breaker that a job stands behind."""
        if job.task == WEBHOOK and self._hosts is not None:
            return HOST_PREFIX + host_of(job.payload)
        key = TASK_PREFIX + job.task
        return key if key in self._tasks else None

    def _policy(self, key: str) -> Breaker | None:
        return self._hosts if key.startswith(HOST_PREFIX) else self._tasks.get(key)

    def _count(self, held: Held, good: bool | None, text: str) -> None:
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
        known, results = self._book.known.get(key), self._results.get(key, NO_RESULTS)
        if known is None and len(self._book.known) + len(self._results) >= _RECORDS_MAX:
            # Hosts are named by producers: of so many that fail at once no more are watched.
            return
        streak = known.record.streak if known else 0
        if good and policy.share is None and not streak and results == NO_RESULTS:
            # As most do. It would change nothing.
            return
        self._results[key] = results = results.plus(good=good, text=text)
        if streak + results.last >= policy.failures:
            self.sooner.set()

    async def _tidy(self) -> None:
        """Hosts that nothing was sent to for long."""
        old = [
            key
            for key, known in self._book.known.items()
            if key.startswith(HOST_PREFIX)
            and not known.record.by
            and known.age_ms > known.record.open_ms + limits.HOUR_MS
        ]
        for key in old[:_TIDIED_MAX]:
            await self._book.change(key, lambda record, _: rules.closed(record))

    def _apply(self) -> None:
        known = self._book.known
        shut = frozenset(
            key.removeprefix(TASK_PREFIX)
            for key in self._tasks
            if key in known and known[key].record.state is not BreakerState.CLOSED
        )
        if shut != self._shut:
            self._shut = shut
            self._doors.shut(shut)

    async def _end_probes(self) -> None:
        for key, probe in list(self._probes.items()):
            if probe.good is not None:
                await self._book.change(key, _judging(self._id, probe.good, probe.text))
                del self._probes[key]
            elif not self._is_mine(key):
                del self._probes[key]
            elif probe.in_hand:
                if self._book.known[key].age_ms > PROBE_MS / 3:
                    await self._book.change(key, lambda record, _: record, anyway=True)
            elif boot_s() >= probe.until:
                del self._probes[key]
                if key in self._tasks:
                    self._rests[key] = boot_s() + _REST_S

    async def _begin_probes(self) -> None:
        for key in self._tasks:
            known = self._book.known.get(key)
            rested = boot_s() >= self._rests.get(key, 0.0)
            ripe = known is not None and rules.may_probe(known.record, known.age_ms)
            fit = ripe and self._doors.has_room(key.removeprefix(TASK_PREFIX))
            if fit and rested and key not in self._probes and await self._win(key):
                self._probes[key] = Probe()
            probe = self._probes.get(key)
            if probe is None or probe.in_hand or probe.good is not None:
                continue
            for held in await self._doors.take_one(key.removeprefix(TASK_PREFIX)):
                if self._closed:
                    self._give_back(key, held)
                    continue
                probe.held = held
                self._doors.start([held])

    async def _unpark(self) -> None:
        """A job that came for a host after its cool-down: it is the probe, or goes back."""
        for key in list(self._parked):
            known = self._book.known.get(key)
            shut = known is not None and known.record.state is not BreakerState.CLOSED
            won = shut and await self._win(key)
            # Not before: whoever cannot reach the store, or is told to end, has it still.
            held = self._parked.pop(key, None)
            if held is None or held.lost:
                continue
            if won:
                self._probes[key] = Probe(held)
            if won or not shut:
                self._doors.start([held])
            else:
                self._give_back(key, held)

    def _may_park(self, key: str, known: Known) -> bool:
        if self._closed or not key.startswith(HOST_PREFIX) or key in self._parked:
            return False
        return key not in self._probes and rules.may_probe(known.record, known.age_ms)

    def _give_back(self, key: str, held: Held) -> None:
        """Nothing is charged. Of a host it comes again when the cool-down is over, and not all
        that wait for it at once."""
        known = self._book.known.get(key) or Known(BreakerRecord(), 0, boot_s())
        delay_ms = 0
        if key.startswith(HOST_PREFIX):
            spread_ms = random.random() * max(known.record.open_ms, limits.SECOND_MS)
            delay_ms = (rules.left_ms(known.record, known.age_ms) or 0) + round(spread_ms)
        text = rules.told(known.record, rules.title(key))
        self._doors.give_back(held, Release(text, delay_ms, unstarted=True))

    def _is_mine(self, key: str) -> bool:
        known = self._book.known.get(key)
        record = known.record if known else BreakerRecord()
        return record.state is BreakerState.HALF_OPEN and record.prober == self._id

    async def _win(self, key: str) -> bool:
        """The right to probe, of all workers that want it."""

        def take(record: BreakerRecord, age_ms: int) -> BreakerRecord:
            fit = rules.may_probe(record, age_ms)
            return rules.probing(record, self._id) if fit else record

        return await self._book.change(key, take) and self._is_mine(key)


def _counting(results: Results, policy: Breaker) -> Change:
    return lambda record, age_ms: rules.counted(record, results, policy, age_ms)


def _judging(id: str, good: bool, text: str) -> Change:
    return lambda record, _: rules.probed(record, id, good=good, text=text)


def _text(failure: Failure) -> str:
    return clean_text(": ".join(filter(None, (failure.type, failure.message))))
