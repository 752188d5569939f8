"""How much a tenant, or a whole namespace, may put in: jobs that wait or run, jobs and bytes in a
time. Kept as records of the namespace, enforced where jobs come in over HTTP.

Rates are counted by each server for itself, depth by the store: between two looks at it a server
counts what it lets in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core import checks, limits
from holdfast.core.model import JobFilter, NewJob, Receipt, Record, State, Status
from holdfast.engines.base import Engine, Saved
from holdfast.errors import ConfigError, EngineUnavailable, QuotaExceeded
from holdfast.server.kept import KEPT_S, Kept
from holdfast.upkeep.paging import records

KIND = "quota"
WHOLE = "namespace"
TENANT = "tenant:"
EACH = "tenant:*"
QUOTAS_MAX = 10_000

_USES_MAX = 10_000
_OPEN = (State.WAITING, State.LEASED)
_ROUNDS_MAX = 20
_DEPTH_RETRY_MS = 5_000
_RARELY = 50
"""A look at the store is worth so many times what it takes before the next one."""


class Allowance(msgspec.Struct, frozen=True):
    """So many in so long, in any pattern; what was not used is kept up to `count`."""

    count: int
    per_ms: int


class Quota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`depth` is of jobs that have not ended, `rate` of jobs that come in, `bytes` of their
    payloads. None is no bound."""

    depth: int | None = None
    rate: Allowance | None = None
    bytes: Allowance | None = None


class Quotas:
    """Of one namespace."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        *,
        clock: Callable[[], float] = time.monotonic,
        is_whole: Callable[[], bool] = lambda: True,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._is_whole = is_whole
        self._kept = Kept(self._read_all)
        self._book: dict[str, Quota] = {}
        self._uses: dict[str, _Use] = {}

    async def all(self) -> dict[str, Quota]:
        """By whose they are."""
        found = records(self._engine(), KIND)
        return {each.key: quota async for each in found if (quota := _read(each)) is not None}

    async def put(self, whose: str, quota: Quota) -> None:
        """In the place of the one that was there. On other servers within a second."""
        check_whose(whose)
        check_quota(quota)
        if len(await self.all()) >= QUOTAS_MAX:
            raise ConfigError(f"there are {QUOTAS_MAX} quotas, which is the most: remove some")
        await self._save(whose, msgspec.json.encode(quota))

    async def remove(self, whose: str) -> bool:
        """False when there was none."""
        if whose not in await self.all():
            return False
        await self._save(whose, None)
        return True

    async def charge(self, jobs: Sequence[NewJob], *, anyway: bool = False) -> Charged:
        """Raise QuotaExceeded unless all of them may come in; nothing is charged then. What comes
        in `anyway` only counts for the next. `ended` is to follow, however it goes."""
        book = self._book = await self._kept.get()
        charged: Charged = {}
        if not book:
            return charged
        for job in jobs:
            for whose in self._payers(book, job.tenant):
                count, size = charged.get(whose, (0, 0))
                charged[whose] = (count + 1, size + len(job.payload))
        if not anyway:
            await self._check(book, jobs, charged)
        # Nothing was awaited since: what there was room for a moment ago, there is still.
        for whose, (count, size) in charged.items():
            use = self._use(whose)
            use.take(count, size)
            use.underway += count
        return charged

    def refund(self, jobs: Sequence[NewJob], receipts: Sequence[Receipt], charged: Charged) -> None:
        """What did not come in after all."""
        if not charged:
            return
        for job, receipt in zip(jobs, receipts, strict=True):
            if receipt.status is not Status.NEW:
                for whose in self._payers(self._book, job.tenant):
                    if whose in charged:
                        self._use(whose).take(-1, -len(job.payload))

    def refund_all(self, charged: Charged) -> None:
        for whose, (count, size) in charged.items():
            self._use(whose).take(-count, -size)

    def ended(self, charged: Charged) -> None:
        """From now on the store knows of what came in."""
        for whose, (count, _) in charged.items():
            use = self._use(whose)
            use.underway = max(0, use.underway - count)

    async def _read_all(self) -> dict[str, Quota]:
        """While a part of the store is away, those that are in it are as they were."""
        was_whole = self._is_whole()
        found = await self.all()
        return found if was_whole and self._is_whole() else self._book | found

    def _payers(self, book: dict[str, Quota], tenant: str | None) -> Iterable[str]:
        if WHOLE in book:
            yield WHOLE
        if tenant is not None and (EACH in book or TENANT + tenant in book):
            yield TENANT + tenant

    async def _check(
        self, book: dict[str, Quota], jobs: Sequence[NewJob], charged: Charged
    ) -> None:
        new: int | None = None
        while True:
            for whose in charged:
                if _of(book, whose).depth is not None:
                    await self._look(whose, self._use(whose))
            self._check_rates(book, charged)
            error = self._too_deep(book, charged, new)
            if error is None:
                return
            if new is not None:
                raise error
            new = await self._new(jobs)

    def _check_rates(self, book: dict[str, Quota], charged: Charged) -> None:
        now = self._clock()
        for whose in charged:
            quota, use = _of(book, whose), self._use(whose)
            for bucket, allowed, what in (
                (use.jobs, quota.rate, "jobs"),
                (use.bytes, quota.bytes, "bytes"),
            ):
                wait_ms = 0 if allowed is None else bucket.wait_ms(allowed, now)
                if wait_ms:
                    text = f"the quota of {show(whose)} for {what} is used up"
                    raise QuotaExceeded(text, retry_ms=wait_ms)

    def _too_deep(
        self, book: dict[str, Quota], charged: Charged, new: int | None
    ) -> QuotaExceeded | None:
        """`new` is how many of the jobs are not there yet, if that is known."""
        for whose, (count, _) in charged.items():
            most, depth = _of(book, whose).depth, self._use(whose).depth
            more = count if new is None else min(count, new)
            if most is not None and depth + more > most:
                text = f"{show(whose)} has {depth} jobs that have not ended, and may have {most}"
                return QuotaExceeded(text, retry_ms=_DEPTH_RETRY_MS)
        return None

    async def _new(self, jobs: Sequence[NewJob]) -> int:
        """How many of them are not there yet: what is only repeated makes nothing deeper."""
        wanted = JobFilter(ids=tuple(dict.fromkeys(job.id for job in jobs)))
        known = await self._engine().tally(wanted, "state", limit=len(State))
        return len(wanted.ids or ()) - sum(tally.count for tally in known)

    async def _look(self, whose: str, use: _Use) -> None:
        began = self._clock()
        if began < use.look_at:
            return
        tenant = whose.removeprefix(TENANT) if whose != WHOLE else None
        wanted = JobFilter(tenant=tenant, states=_OPEN)
        before, underway = use.taken, use.underway
        tallies = await self._engine().tally(wanted, "state", limit=len(_OPEN))
        # What was on its way, or came while it was being counted, is perhaps not among them.
        use.depth = sum(tally.count for tally in tallies) + underway + use.taken - before
        now = self._clock()
        use.look_at = now + max(KEPT_S, _RARELY * (now - began))

    def _use(self, whose: str) -> _Use:
        use = self._uses.get(whose)
        if use is None:
            if len(self._uses) >= _USES_MAX:
                # The one that was made first: tenants are many, and most come once.
                self._uses.pop(next(iter(self._uses)))
            use = self._uses[whose] = _Use()
        return use

    async def _save(self, whose: str, value: bytes | None) -> None:
        engine = self._engine()
        for _ in range(_ROUNDS_MAX):
            versions = {each.key: each.version async for each in records(engine, KIND)}
            record = Record(kind=KIND, key=whose, value=value, version=versions.get(whose, 0))
            if (await engine.save([record]))[0] is Saved.SAVED:
                self._kept.forget()
                return
        raise EngineUnavailable(f"the quota of {whose} is being changed by others: try again")


Charged = dict[str, tuple[int, int]]
"""How many jobs and bytes, by whose quota they count for."""


class _Bucket:
    """What is left, as of an instant. It may be overdrawn by one call, which the next pay for."""

    __slots__ = ("at", "left")

    def __init__(self) -> None:
        self.left = float("inf")
        self.at = 0.0

    def wait_ms(self, allowed: Allowance, now: float) -> int:
        """How long until there is one; 0 is now."""
        gained = (now - self.at) * 1000 * allowed.count / allowed.per_ms
        self.left = min(self.left + max(0.0, gained), float(allowed.count))
        self.at = now
        if self.left >= 1:
            return 0
        return int((1 - self.left) * allowed.per_ms / allowed.count) + 1


class _Use:
    """What one of them uses. `depth` is as of the last look, and with what came in since;
    `underway` are on their way to the store."""

    __slots__ = ("bytes", "depth", "jobs", "look_at", "taken", "underway")

    def __init__(self) -> None:
        self.jobs = _Bucket()
        self.bytes = _Bucket()
        self.depth = 0
        self.look_at = float("-inf")
        self.taken = 0
        self.underway = 0

    def take(self, count: int, size: int) -> None:
        self.jobs.left -= count
        self.bytes.left -= size
        self.depth += count
        self.taken += count


def _of(book: dict[str, Quota], whose: str) -> Quota:
    return book.get(whose) or book[EACH]


def show(whose: str) -> str:
    return "the namespace" if whose == WHOLE else f"tenant {whose.removeprefix(TENANT)[:80]}"


def check_whose(whose: str) -> None:
    if whose == WHOLE:
        return
    if not whose.startswith(TENANT) or whose == TENANT:
        raise ConfigError(f"a quota is of {WHOLE}, of {TENANT}NAME or of {EACH}, each of them")
    checks.check_text("tenant", whose)


def check_quota(quota: Quota) -> None:
    if quota == Quota():
        raise ConfigError("a quota bounds something: give depth, rate or bytes")
    if quota.depth is not None and not 0 <= quota.depth < limits.SCAN_MAX:
        raise ConfigError(f"depth {quota.depth} is not 0 to {limits.SCAN_MAX - 1}")
    for name, allowed in (("rate", quota.rate), ("bytes", quota.bytes)):
        if allowed is None:
            continue
        if not 1 <= allowed.count <= 2**53 or not 1 <= allowed.per_ms <= limits.DAY_MS:
            raise ConfigError(f"{name} is at least 1, in at most a day")


def _read(record: Record) -> Quota | None:
    try:
        return msgspec.json.decode(record.value or b"", type=Quota)
    except msgspec.DecodeError:
        # Another version's: nobody is let in without bound because of it.
        return replace(Quota(), depth=0)
