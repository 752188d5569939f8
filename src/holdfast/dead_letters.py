"""Dead letters as a person wants to see them: grouped by what killed them, and those that crashed
their workers. Read in bounded calls; nothing is changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.bulk import batches
from holdfast.core import limits
from holdfast.core.model import EventKind, Failure, FailureKind, Job, JobFilter, Reason, State
from holdfast.engines.base import Engine

WALK_MAX = limits.COUNT_EXACT_MAX
"""So many of the newest are looked at one by one; the rest is only counted."""

BUCKETS = 12
_SAMPLES = 5
_NAMES_MAX = 10
_BUCKET_MS_MIN = limits.SECOND_MS
_DEAD = (State.DEAD,)


class DeadGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of one fingerprint. `type` and `text` are of the newest, `ids` the newest ones.

    Names are given with how many, most first, at most ten. With `estimated` only the newest were
    looked at: there may be more of everything but the count, and the first is older.
    """

    fingerprint: str | None
    count: int
    estimated: bool = False
    type: str = ""
    text: str = ""
    first_at: int = 0
    last_at: int = 0
    redriven: int = 0
    tasks: dict[str, int] = {}
    queues: dict[str, int] = {}
    reasons: dict[str, int] = {}
    tenants: dict[str, int] = {}
    workers: dict[str, int] = {}
    trend: tuple[int, ...] = ()
    ids: tuple[str, ...] = ()


class DeadGroups(msgspec.Struct, frozen=True, kw_only=True):
    """The largest groups first. `total` dead letters are in all groups, of which `hidden` are not
    given; with `estimated` there are at least so many. A trend begins at `trend_from`, and each of
    its numbers is for `bucket_ms`."""

    groups: tuple[DeadGroup, ...] = ()
    hidden: int = 0
    total: int = 0
    estimated: bool = False
    trend_from: int = 0
    bucket_ms: int = _BUCKET_MS_MIN


class Quarantined(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was given up because the processes that ran it died. `crashes` are those of its
    whole life; `words` is the last that the process wrote, `output` the last that the job did."""

    id: str
    queue: str
    task: str
    died_at: int
    crashes: int
    redrives: int
    signal: int | None = None
    exit_code: int | None = None
    type: str = ""
    text: str = ""
    words: str = ""
    output: str = ""
    workers: tuple[str, ...] = ()


async def dead_groups(
    engine: Engine, wanted: JobFilter, *, now: int, limit: int = 20
) -> DeadGroups:
    """What killed the dead letters that fit; `now` is the engine's."""
    wanted = replace(wanted, states=_DEAD)
    tallies = await engine.tally(wanted, "fingerprint", limit=limits.PAGE_MAX)
    counts = {tally.value: tally.count for tally in tallies}
    known = await _walk(engine, wanted)
    walked = sum(len(jobs) for jobs in known.values())
    for value, jobs in known.items():
        # Some may have died between the two.
        counts[value] = max(counts.get(value, 0), len(jobs))
    largest = sorted(counts, key=lambda value: (-counts[value], value or ""))[:limit]
    for value in largest:
        if value is not None and value not in known:
            page = await engine.find(replace(wanted, fingerprint=value), limit=_SAMPLES)
            known[value] = list(page.jobs)
    ends = [job.finished_at or now for value in largest for job in known.get(value, ())]
    start = min(ends, default=now)
    bucket_ms = max(_BUCKET_MS_MIN, -(-(now + 1 - start) // BUCKETS))
    groups = []
    for value in largest:
        group = group_of(known.get(value, ()), value, now=now, bucket_ms=bucket_ms)
        group = replace(
            group, count=counts[value], estimated=group.count < counts[value] or not group.count
        )
        groups.append(await _with_sample(engine, group))
    total = sum(counts.values())
    return DeadGroups(
        groups=tuple(groups),
        hidden=total - sum(group.count for group in groups),
        total=total,
        estimated=max(total, walked) >= limits.SCAN_MAX or len(tallies) >= limits.PAGE_MAX,
        trend_from=now + 1 - BUCKETS * bucket_ms,
        bucket_ms=bucket_ms,
    )


def group_of(
    jobs: Sequence[Job], fingerprint: str | None, *, now: int, bucket_ms: int
) -> DeadGroup:
    """Of dead letters, newest first, without what only a whole job knows."""
    died = [job.finished_at or now for job in jobs]
    trend = [0] * BUCKETS
    for at in died:
        trend[max(0, BUCKETS - 1 - max(0, now - at) // bucket_ms)] += 1
    newest = sorted(jobs, key=lambda job: (-(job.finished_at or 0), -job.seq))
    return DeadGroup(
        fingerprint=fingerprint,
        count=len(jobs),
        first_at=min(died, default=0),
        last_at=max(died, default=0),
        redriven=sum(job.redrives > 0 for job in jobs),
        tasks=_names(job.task for job in jobs),
        queues=_names(job.queue for job in jobs),
        reasons=_names(str(job.reason) for job in jobs if job.reason),
        tenants=_names(job.tenant for job in jobs if job.tenant),
        workers=_names(job.worker for job in jobs if job.worker),
        trend=tuple(trend),
        ids=tuple(job.id for job in newest[:_SAMPLES]),
    )


def what_killed(job: Job) -> Failure | None:
    """Of a whole job: what its last burial says, or else its last failure."""
    for event in reversed(job.events):
        if event.kind is EventKind.BURIED:
            return event.failure
    return job.failures[-1].failure if job.failures else None


def is_quarantined(job: Job) -> bool:
    return job.state is State.DEAD and job.reason is Reason.CRASHED


def quarantined(job: Job) -> Quarantined:
    """Of a whole job."""
    failure = what_killed(job) or Failure()
    crashes = [
        event
        for event in job.failures
        if event.failure is not None and event.failure.kind is FailureKind.CRASH
    ]
    return Quarantined(
        id=job.id,
        queue=job.queue,
        task=job.task,
        died_at=job.finished_at or 0,
        crashes=max(job.crashes, len(crashes)),
        redrives=job.redrives,
        signal=failure.signal,
        exit_code=failure.exit_code,
        type=failure.type,
        text=failure.message,
        words=failure.trace,
        output=(job.output or b"").decode(errors="replace"),
        workers=tuple(dict.fromkeys(event.by for event in crashes if event.by)),
    )


async def _walk(engine: Engine, wanted: JobFilter) -> dict[str | None, list[Job]]:
    """The newest, by fingerprint, without their payloads."""
    found: dict[str | None, list[Job]] = {}
    async for jobs in batches(engine, wanted, most=WALK_MAX):
        for job in jobs:
            found.setdefault(job.fingerprint, []).append(replace(job, payload=b""))
    return found


async def _with_sample(engine: Engine, group: DeadGroup) -> DeadGroup:
    for id_ in group.ids:
        job = await engine.get(id_)
        if job is not None and job.state is State.DEAD and job.fingerprint == group.fingerprint:
            failure = what_killed(job)
            text = str(job.reason or "") if failure is None else failure.message
            return replace(group, type="" if failure is None else failure.type, text=text)
    return group


def _names(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common(_NAMES_MAX))
