"""Enforces quotas on jobs enqueued over HTTP. Each server counts rates on its own. Depth is counted
by the store; between two reads of it, a server adds the jobs it accepted. `SharedRead` keeps the
stored quotas, and elsewhere the tokens, from being read more than once a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from holdfast.core.model import JobFilter, NewJob, Receipt, State, Status
from holdfast.engines.base import Engine
from holdfast.errors import QuotaExceeded
from holdfast.ops.quotas import EACH, TENANT, WHOLE, Allowance, Quota, Quotas, show_owner

SHARED_READ_AGE_S_MAX = 1.0

_USES_MAX = 10_000
_OPEN = (State.WAITING, State.LEASED)
_DEPTH_RETRY_MS = 5_000
_COUNT_REST = 50
"""After counting a depth, the pause until the next count is this many times as long as the count
took.
"""

Charged = dict[str, tuple[int, int]]
"""The jobs and bytes that were charged, by the owner of the quota."""

Value = TypeVar("Value")


class QuotaEnforcer(Quotas):
    """The quotas of one namespace, read at most once a second, and their use on this server."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        *,
        clock: Callable[[], float] = time.monotonic,
        is_whole: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(engine)
        self._clock = clock
        self._is_whole = is_whole
        self._cache = SharedRead(self._read_all)
        self._quotas: dict[str, Quota] = {}
        self._uses: dict[str, _Use] = {}

    async def put(self, whose: str, quota: Quota) -> None:
        """Applies here at once, and on other servers within a second."""
        await super().put(whose, quota)
        self._cache.forget()

    async def remove(self, whose: str) -> bool:
        removed = await super().remove(whose)
        self._cache.forget()
        return removed

    async def charge(self, jobs: Sequence[NewJob], *, anyway: bool = False) -> Charged:
        """Charge jobs that are about to be enqueued; QuotaExceeded charges nothing.

        `anyway` charges without a check, so that only later jobs are refused. The caller calls
        `ended` afterwards, in every case.
        """
        quotas = self._quotas = await self._cache.get()
        charged: Charged = {}
        if not quotas:
            return charged
        for job in jobs:
            for whose in self._payers(quotas, job.tenant):
                count, size = charged.get(whose, (0, 0))
                charged[whose] = (count + 1, size + len(job.payload))
        if not anyway:
            await self._check(quotas, jobs, charged)
        # Nothing was awaited since the check, so there is still room.
        for whose, (count, size) in charged.items():
            use = self._use(whose)
            use.take(count, size)
            use.underway += count
        return charged

    def refund(self, jobs: Sequence[NewJob], receipts: Sequence[Receipt], charged: Charged) -> None:
        """Refund the charges of duplicates and refused jobs."""
        if not charged:
            return
        for job, receipt in zip(jobs, receipts, strict=True):
            if receipt.status is not Status.NEW:
                for whose in self._payers(self._quotas, job.tenant):
                    if whose in charged:
                        self._use(whose).take(-1, -len(job.payload))

    def refund_all(self, charged: Charged) -> None:
        """Refund everything: no job was enqueued."""
        for whose, (count, size) in charged.items():
            self._use(whose).take(-count, -size)

    def ended(self, charged: Charged) -> None:
        """The enqueue is over: from now on the store counts these jobs."""
        for whose, (count, _) in charged.items():
            use = self._use(whose)
            use.underway = max(0, use.underway - count)

    async def _read_all(self) -> dict[str, Quota]:
        """While a part of the store is unreachable, its quotas are used as they were last read."""
        was_whole = self._is_whole()
        found = await self.all()
        return found if was_whole and self._is_whole() else self._quotas | found

    def _payers(self, quotas: dict[str, Quota], tenant: str | None) -> Iterable[str]:
        if WHOLE in quotas:
            yield WHOLE
        if tenant is not None and (EACH in quotas or TENANT + tenant in quotas):
            yield TENANT + tenant

    async def _check(
        self, quotas: dict[str, Quota], jobs: Sequence[NewJob], charged: Charged
    ) -> None:
        new: int | None = None
        while True:
            for whose in charged:
                if _quota_of(quotas, whose).depth is not None:
                    await self._count_depth(whose, self._use(whose))
            self._check_rates(quotas, charged)
            error = self._too_deep(quotas, charged, new)
            if error is None:
                return
            if new is not None:
                raise error
            new = await self._count_new(jobs)

    def _check_rates(self, quotas: dict[str, Quota], charged: Charged) -> None:
        now = self._clock()
        for whose in charged:
            quota, use = _quota_of(quotas, whose), self._use(whose)
            for bucket, allowed, what in (
                (use.jobs, quota.rate, "jobs"),
                (use.bytes, quota.bytes, "bytes"),
            ):
                wait_ms = 0 if allowed is None else bucket.wait_ms(allowed, now)
                if wait_ms:
                    text = f"the quota of {show_owner(whose)} for {what} is used up"
                    raise QuotaExceeded(text, retry_ms=wait_ms)

    def _too_deep(
        self, quotas: dict[str, Quota], charged: Charged, new: int | None
    ) -> QuotaExceeded | None:
        """`new` is how many of the jobs are not in the store yet, if that is known."""
        for whose, (count, _) in charged.items():
            most, depth = _quota_of(quotas, whose).depth, self._use(whose).depth
            more = count if new is None else min(count, new)
            if most is not None and depth + more > most:
                text = f"{show_owner(whose)} has {depth} unfinished jobs; the maximum is {most}"
                return QuotaExceeded(text, retry_ms=_DEPTH_RETRY_MS)
        return None

    async def _count_new(self, jobs: Sequence[NewJob]) -> int:
        """The number of jobs that are not in the store yet: a repeated enqueue adds no depth."""
        wanted = JobFilter(ids=tuple(dict.fromkeys(job.id for job in jobs)))
        known = await self._engine().tally(wanted, "state", limit=len(State))
        return len(wanted.ids or ()) - sum(tally.count for tally in known)

    async def _count_depth(self, whose: str, use: _Use) -> None:
        began = self._clock()
        if began < use.count_at:
            return
        tenant = whose.removeprefix(TENANT) if whose != WHOLE else None
        wanted = JobFilter(tenant=tenant, states=_OPEN)
        before, underway = use.taken, use.underway
        tallies = await self._engine().tally(wanted, "state", limit=len(_OPEN))
        # The count may miss jobs that were being enqueued, or that arrived during the count.
        use.depth = sum(tally.count for tally in tallies) + underway + use.taken - before
        now = self._clock()
        use.count_at = now + max(SHARED_READ_AGE_S_MAX, _COUNT_REST * (now - began))

    def _use(self, whose: str) -> _Use:
        use = self._uses.get(whose)
        if use is None:
            if len(self._uses) >= _USES_MAX:
                # Drop the oldest: there are many tenants, and most are seen once.
                self._uses.pop(next(iter(self._uses)))
            use = self._uses[whose] = _Use()
        return use


class SharedRead(Generic[Value]):
    """A value read from the store at most once a second. Concurrent callers share one read, and
    cancelling one of them does not cancel it."""

    def __init__(self, read: Callable[[], Coroutine[Any, Any, Value]]) -> None:
        self._read = read
        self._value: Value | None = None
        self._read_at = float("-inf")
        self._reading: asyncio.Task[Value] | None = None

    async def get(self, age_s_max: float = SHARED_READ_AGE_S_MAX) -> Value:
        """The value, at most this old."""
        if self._value is not None and time.monotonic() - self._read_at < age_s_max:
            return self._value
        reading = self._reading
        if reading is None:
            reading = self._reading = asyncio.create_task(self._read())
            reading.add_done_callback(partial(self._done, time.monotonic()))
        return await asyncio.shield(reading)

    async def get_current(self, pause_s: float) -> Value:
        """The value as the store has it now or later. Such reads begin at most once in `pause_s`;
        until the next one, callers wait together."""
        asked_at = time.monotonic()
        while self._value is None or self._read_at < asked_at:
            pause = self._read_at + pause_s - time.monotonic()
            if self._reading is None and pause > 0:
                await asyncio.sleep(pause)
            await self.get(pause_s)
        return self._value

    def forget(self) -> None:
        """Drop the value after a change: the next `get` reads again."""
        self._value = None
        self._reading = None

    def _done(self, started_at: float, reading: asyncio.Task[Value]) -> None:
        error = None if reading.cancelled() else reading.exception()
        # A read that began before `forget` must not bring the old value back.
        if reading is self._reading:
            self._reading = None
            if error is None and not reading.cancelled():
                self._value, self._read_at = reading.result(), started_at


class _Bucket:
    """A token bucket. One call may overdraw it, and later ones wait until that is made up."""

    __slots__ = ("at", "left")

    def __init__(self) -> None:
        self.left = float("inf")
        self.at = 0.0

    def wait_ms(self, allowed: Allowance, now: float) -> int:
        """The time until one more is allowed; 0 is now."""
        gained = (now - self.at) * 1000 * allowed.count / allowed.per_ms
        self.left = min(self.left + max(0.0, gained), float(allowed.count))
        self.at = now
        if self.left >= 1:
            return 0
        return int((1 - self.left) * allowed.per_ms / allowed.count) + 1


class _Use:
    """The use of one quota. `depth` is the store's last count plus the jobs accepted since;
    `underway` jobs are being enqueued.
    """

    __slots__ = ("bytes", "count_at", "depth", "jobs", "taken", "underway")

    def __init__(self) -> None:
        self.jobs = _Bucket()
        self.bytes = _Bucket()
        self.depth = 0
        self.count_at = float("-inf")
        self.taken = 0
        self.underway = 0

    def take(self, count: int, size: int) -> None:
        """Charge jobs and bytes; negative numbers are a refund."""
        self.jobs.left -= count
        self.bytes.left -= size
        self.depth += count
        self.taken += count


def _quota_of(quotas: dict[str, Quota], whose: str) -> Quota:
    return quotas.get(whose) or quotas[EACH]
