"""Redrives as records beside the jobs: start, look at, cancel.

Every change is a compare-and-set on the record that was read, so that a cancel and a step of the
redriver never overwrite each other.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core import checks, codec, limits
from holdfast.core.flow import Rate
from holdfast.core.model import Record, State
from holdfast.engines.base import Engine, Saved
from holdfast.errors import ConfigError, EngineUnavailable, UsageError
from holdfast.upkeep.paging import records
from holdfast.upkeep.redrive import (
    BATCH,
    Batch,
    Fate,
    RedrivePlan,
    RedriveRecord,
    RedriveState,
    stepwise,
)

RECORD_KIND = "redrive"
BATCH_KIND = "redriven"
_ROUNDS_MAX = 20
_REDRIVES_MOST = 1_000_000

_Kept = TypeVar("_Kept", RedriveRecord, Batch)


class Survey(NamedTuple):
    """How many dead letters fit, as far as they were counted: with `more`, at least so many.
    `capped` others were redriven too often already."""

    fitting: int = 0
    capped: int = 0
    more: bool = False


class RedriveView(msgspec.Struct, frozen=True, kw_only=True):
    """A redrive and what became of the jobs it put back: `recurred` of the `died` ones died of the
    same as before, `other` were cancelled or are gone, and `open` have not ended yet. `age_ms` is
    the time since its last step."""

    redrive: RedriveRecord
    age_ms: int = 0
    done: int = 0
    died: int = 0
    recurred: int = 0
    other: int = 0
    open: int = 0


class Redrives:
    """`wall_ms` is this machine's wall clock, for people to read."""

    def __init__(self, engine: Engine, wall_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._wall_ms = wall_ms

    async def survey(self, plan: RedrivePlan, *, most: int | None = None) -> Survey:
        """What it would meet, until `most` that fit are found; nothing is changed."""
        return await survey(self._engine, _checked(plan), most)

    async def start(self, plan: RedrivePlan, found: Survey | None = None) -> RedriveRecord:
        """Durable on return. Upkeep, wherever it runs, does it. `found` is what a survey said."""
        plan = _checked(plan)
        if plan.rate is not None:
            plan = replace(plan, rate=stepwise(plan.rate))
        found = found or await survey(self._engine, plan)
        now = self._wall_ms()
        for _ in range(_ROUNDS_MAX):
            redrive = RedriveRecord(
                id=f"{now // 1_000:x}-{secrets.token_hex(2)}",
                plan=plan,
                total=found.fitting,
                estimated=found.more,
                started_at=now,
            )
            if (await self._engine.save([encode(redrive)]))[0] is Saved.SAVED:
                return redrive
        raise _busy("a new one")

    async def cancel(self, id: str, by: str) -> RedriveRecord:
        """Put back no more. What it has in hand at this moment is finished first."""
        for _ in range(_ROUNDS_MAX):
            record = await self._record(id)
            if record is None:
                raise UsageError(f"redrive {id[:80]!r} does not exist")
            redrive = decode(record)
            if redrive.state.ended:
                return redrive
            text = f"by {by}" if by else ""
            cancelled = ended(redrive, RedriveState.CANCELLED, text, self._wall_ms())
            if (await self._engine.save([encode(cancelled, record.version)]))[0] is Saved.SAVED:
                return cancelled
        raise _busy(id)

    async def get(self, id: str) -> RedriveView | None:
        record = await self._record(id)
        return None if record is None else await self._view(record)

    async def all(self) -> list[RedriveView]:
        """All of them, oldest first."""
        return [await self._view(record) async for record in records(self._engine, RECORD_KIND)]

    async def going_on(self) -> list[RedriveView]:
        """Those that have not ended."""
        return [
            await self._view(record)
            async for record in records(self._engine, RECORD_KIND)
            if not decode(record).state.ended
        ]

    async def _view(self, record: Record) -> RedriveView:
        redrive = decode(record)
        fates: Counter[Fate] = Counter()
        async for each in batches(self._engine, redrive.id):
            fates += decode_batch(each).fates
        return RedriveView(
            redrive=redrive,
            age_ms=record.age_ms,
            done=fates[Fate.DONE],
            died=fates[Fate.DIED] + fates[Fate.RECURRED],
            recurred=fates[Fate.RECURRED],
            other=fates[Fate.OTHER],
            open=max(0, redrive.retried - fates.total()),
        )

    async def _record(self, id: str) -> Record | None:
        given: object = id
        if not isinstance(given, str) or not limits.QUEUE_NAME.match(given):
            return None
        async for record in records(self._engine, RECORD_KIND, after=given[:-1] or None):
            if record.key >= given:
                return record if record.key == given else None
        return None


async def survey(engine: Engine, plan: RedrivePlan, most: int | None = None) -> Survey:
    most = limits.SCAN_MAX if most is None else most
    fitting = capped = 0
    after: int | None = None
    while True:
        page = await engine.find(plan.wanted, limit=BATCH, after=after)
        over = sum(job.redrives >= plan.redrives_max for job in page.jobs)
        fitting, capped, after = fitting + len(page.jobs) - over, capped + over, page.after
        enough = fitting >= most or fitting + capped >= limits.SCAN_MAX
        if after is None or enough:
            return Survey(fitting, capped, more=after is not None)


async def batches(engine: Engine, id: str) -> AsyncIterator[Record]:
    """The records of one redrive's batches, in order."""
    async for record in records(engine, BATCH_KIND, after=f"{id}/"):
        if not record.key.startswith(f"{id}/"):
            return
        yield record


def ended(redrive: RedriveRecord, state: RedriveState, text: str, now: int) -> RedriveRecord:
    return replace(redrive, state=state, text=text, ended_at=now)


def encode(redrive: RedriveRecord, version: int = 0) -> Record:
    value = msgspec.json.encode(redrive)
    return Record(kind=RECORD_KIND, key=redrive.id, value=value, version=version)


def decode(record: Record) -> RedriveRecord:
    return _decode(record, RedriveRecord)


def batch_key(id: str, number: int) -> str:
    return f"{id}/{number:06d}"


def encode_batch(batch: Batch, key: str, version: int) -> Record:
    return Record(kind=BATCH_KIND, key=key, value=msgspec.json.encode(batch), version=version)


def decode_batch(record: Record) -> Batch:
    return _decode(record, Batch)


def _decode(record: Record, kind: type[_Kept]) -> _Kept:
    try:
        return msgspec.json.decode(record.value or b"", type=kind)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"the record of redrive {record.key} cannot be read ({error}): another version wrote it"
        ) from None


def _checked(plan: RedrivePlan) -> RedrivePlan:
    """As it will be read back; of dead letters alone."""
    try:
        read = msgspec.json.decode(msgspec.json.encode(plan), type=RedrivePlan)
    except (msgspec.MsgspecError, TypeError) as error:
        raise UsageError(f"the redrive cannot be kept: {error}") from None
    checks.check_filter(read.wanted)
    rate = read.rate or Rate(count=1, per_ms=1)
    for name, value, low, high in (
        ("redrives_max", read.redrives_max, 1, _REDRIVES_MOST),
        ("canary_wait_ms", read.canary_wait_ms, 1, limits.DELAY_MS_MAX),
        ("delay_ms", read.delay_ms, 0, limits.DELAY_MS_MAX),
        ("the count of its rate", rate.count, 1, limits.RATE_COUNT_MAX),
        ("the per_ms of its rate", rate.per_ms, 1, limits.DAY_MS),
        ("the burst of its rate", rate.burst, 1, limits.RATE_COUNT_MAX),
    ):
        if not low <= value <= high:
            raise UsageError(f"{name} {value} is not {low} to {high}")
    if read.patch is not None:
        codec.decode(read.patch)
    return replace(read, wanted=replace(read.wanted, states=(State.DEAD,)))


def _busy(id: str) -> EngineUnavailable:
    return EngineUnavailable(f"redrive {id} is being changed by others all the time: try again")
