"""Dead letters: group them by the failure that caused them, show quarantined ones, put them back.

All reads are bounded. A job that changed since it was read is not put back; repeating a pass over
the same jobs, from any process, changes nothing more.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import asdict, replace

from holdfast.core import bounds, codec
from holdfast.core.amend import matches
from holdfast.core.model import EventKind, Failure, FailureKind, Job, JobFilter, Reason, State
from holdfast.core.verdict import Edit, Redrive
from holdfast.engines.base import Engine, unknown_if_partial
from holdfast.engines.extras import DeadLetterQueues
from holdfast.errors import UsageError
from holdfast.notation.durations import Duration, show_at, to_ms
from holdfast.notation.policies import to_rate
from holdfast.ops.jobs.bulk import OnProgress, ignore_progress, job_batches
from holdfast.ops.redrives import REDRIVES_MAX, RedrivePlan, TakenJob

WALK_MAX = bounds.COUNT_EXACT_MAX
"""The newest dead letters, which are read one by one; older ones are only counted."""

BUCKETS = 12
_SAMPLES = 5
_NAMES_MAX = 10
_BUCKET_MS_MIN = bounds.SECOND_MS
_NO_CAP = 1_000_000
_EDIT_TRIES_MAX = 5
_DEAD = (State.DEAD,)


class DeadGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters with the same fingerprint. `type` and `text` are those of the newest one, and
    `ids` are the newest.

    Tasks, queues and other names come with their counts, the ten most frequent. With `estimated`
    only the newest were read: `count` is exact, but the rest may be too low and `first_at` too
    late.
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
    """The largest groups first, with `total` dead letters in all and `hidden` in groups that are
    left out; with `estimated` these are lower bounds. A trend begins at `trend_from` in buckets of
    `bucket_ms`."""

    groups: tuple[DeadGroup, ...] = ()
    hidden: int = 0
    total: int = 0
    estimated: bool = False
    trend_from: int = 0
    bucket_ms: int = _BUCKET_MS_MIN


class Quarantined(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was buried because the processes that ran it crashed. `crashes` counts all of its
    life; `words` is the end of the process's output, `output` the end of the job's own."""

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
    """Group the matching dead letters by fingerprint. `now` is the engine's clock."""
    wanted = replace(wanted, states=_DEAD)
    tallies = await engine.tally(wanted, "fingerprint", limit=bounds.PAGE_MAX)
    counts = {tally.value: tally.count for tally in tallies}
    known = await _walk(engine, wanted)
    walked = sum(len(jobs) for jobs in known.values())
    for value, jobs in known.items():
        # Some may have died between the count and the walk.
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
        estimated=max(total, walked) >= bounds.SCAN_MAX or len(tallies) >= bounds.PAGE_MAX,
        trend_from=now + 1 - BUCKETS * bucket_ms,
        bucket_ms=bucket_ms,
    )


def group_of(
    jobs: Sequence[Job], fingerprint: str | None, *, now: int, bucket_ms: int
) -> DeadGroup:
    """The group of these dead letters, newest first, without `type` and `text`."""
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
        tasks=_name_counts(job.task for job in jobs),
        queues=_name_counts(job.queue for job in jobs),
        reasons=_name_counts(str(job.reason) for job in jobs if job.reason),
        tenants=_name_counts(job.tenant for job in jobs if job.tenant),
        workers=_name_counts(job.worker for job in jobs if job.worker),
        trend=tuple(trend),
        ids=tuple(job.id for job in newest[:_SAMPLES]),
    )


def last_failure(job: Job) -> Failure | None:
    """The failure of the last burial of a job that `get` read, or else its last failure."""
    for event in reversed(job.events):
        if event.kind is EventKind.BURIED:
            return event.failure
    return job.failures[-1].failure if job.failures else None


def is_quarantined(job: Job) -> bool:
    """True for a dead letter that crashed the processes that ran it."""
    return job.state is State.DEAD and job.reason is Reason.CRASHED


def quarantined(job: Job) -> Quarantined:
    """The crashes of a quarantined job that `get` read."""
    failure = last_failure(job) or Failure()
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


class DeadSample(NamedTuple):
    """Some dead letters of a store that cannot be searched, newest first, of about `total`."""

    letters: list[Job]
    total: int


async def sample_dead(
    engine: Engine, queues: DeadLetterQueues, wanted: JobFilter, *, limit: int, now: int
) -> DeadSample:
    """Read at most `limit` dead letters, and keep those that match."""
    names = None if wanted.queue is None else [wanted.queue]
    found = await queues.sample_dead(names, limit=min(limit, bounds.PAGE_MAX))
    views = await engine.queues(names=names)
    letters = [job for job in found if matches(wanted, job, now)]
    letters.sort(key=lambda job: (-(job.finished_at or 0), job.id))
    return DeadSample(letters, max(sum(view.dead for view in views), len(found)))


async def _walk(engine: Engine, wanted: JobFilter) -> dict[str | None, list[Job]]:
    """The newest dead letters by fingerprint, without their payloads."""
    found: dict[str | None, list[Job]] = {}
    async for jobs in job_batches(engine, wanted, most=WALK_MAX):
        for job in jobs:
            found.setdefault(job.fingerprint, []).append(replace(job, payload=b""))
    return found


async def _with_sample(engine: Engine, group: DeadGroup) -> DeadGroup:
    for job_id in group.ids:
        job = await engine.get(job_id)
        if job is not None and job.state is State.DEAD and job.fingerprint == group.fingerprint:
            failure = last_failure(job)
            text = str(job.reason or "") if failure is None else failure.message
            return replace(group, type="" if failure is None else failure.type, text=text)
    return group


def _name_counts(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common(_NAMES_MAX))


class RetryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for putting dead letters back. `edit` is a JSON merge patch for each payload, as
    text. A job that was redriven `max_redrives` times is left alone, unless it is named by its
    id."""

    delay: Duration = 0
    edit: str | None = None
    max_redrives: int | None = None
    rate: str | None = None
    canary: bool = False
    canary_wait: Duration = "10m"

    def plan(self, wanted: JobFilter, by: str) -> RedrivePlan:
        """The plan of a redrive with these options. UsageError if one cannot be read."""
        cap = self.max_redrives
        return RedrivePlan(
            wanted=wanted,
            by=by,
            rate=None if self.rate is None else to_rate("rate", self.rate, UsageError),
            canary=self.canary,
            canary_wait_ms=to_ms("canary-wait", self.canary_wait, UsageError),
            redrives_max=cap if cap is not None else _NO_CAP if wanted.ids else REDRIVES_MAX,
            patch=None if self.edit is None else _merge_patch(self.edit),
            delay_ms=to_ms("delay", self.delay, UsageError),
        )


class PutBackResult(NamedTuple):
    """The jobs that were put back, and how many payloads could not be patched. All others were
    changed by others."""

    retried: tuple[TakenJob, ...]
    unfit: int = 0


async def retry_jobs(
    engine: Engine,
    plan: RedrivePlan,
    *,
    most: int | None = None,
    advance: OnProgress = ignore_progress,
) -> int:
    """Put back every match now, or `most` of them, and return how many were put back. Jobs at the
    redrive limit are skipped.
    """
    act = Redrive(by=plan.by, delay_ms=plan.delay_ms)
    left = bounds.SCAN_MAX if most is None else most
    retried = 0
    scan_max = None if most is None else bounds.SCAN_MAX
    with unknown_if_partial(lambda: retried):
        async for jobs in job_batches(engine, plan.wanted, most=scan_max):
            fitting = [job for job in jobs if job.redrives < plan.redrives_max]
            if most is not None:
                fitting = fitting[:left]
                left -= len(fitting)
            taken = taken_jobs(fitting)
            retried += await put_back(engine, taken, act, plan.patch, among=plan.wanted)
            advance(len(jobs))
            if left <= 0:
                break
    return retried


def taken_jobs(jobs: Sequence[Job]) -> tuple[TakenJob, ...]:
    """The ids and versions of jobs to put back."""
    return tuple(TakenJob(job.id, job.version, job.fingerprint) for job in jobs)


async def put_back(
    engine: Engine,
    taken: Sequence[TakenJob],
    act: Redrive,
    patch: bytes | None = None,
    *,
    among: JobFilter | None = None,
) -> int:
    """Redrive jobs that are unchanged, and return how many this call put back. `among` restricts
    them to its queue and task, whatever the stored record lists.
    """
    changed = 0
    where = JobFilter() if among is None else JobFilter(queue=among.queue, task=among.task)
    with unknown_if_partial(lambda: changed):
        if patch is not None:
            for job in taken:
                changed += await _edit_and_put_back(engine, where, job, act, patch)
            return changed
        # Jobs with the same history have the same version, so there are few groups.
        versions: dict[int, list[str]] = defaultdict(list)
        for job in taken:
            versions[job.version].append(job.id)
        for version, ids in versions.items():
            unchanged = replace(where, ids=tuple(ids), states=_DEAD, version=version)
            changed += await engine.amend(unchanged, act, limit=len(ids))
    return changed


async def put_back_result(
    engine: Engine, taken: Sequence[TakenJob], act: Redrive, patch: bytes | None = None
) -> PutBackResult:
    """The result of `put_back`, by any process, from the timelines; `act` has a unique text."""
    retried = []
    unfit = 0
    for each in taken:
        job = await engine.get(each.id)
        if job is None:
            continue
        if any(event.kind is EventKind.REDRIVEN and event.text == act.text for event in job.events):
            retried.append(each)
        elif patch is not None and job.state is State.DEAD and patched(job, patch) is None:
            unfit += 1
    return PutBackResult(tuple(retried), unfit)


def patched(job: Job, patch: bytes) -> bytes | None:
    """The payload with the merge patch; the same bytes if the patch changes no value, None if the
    payload cannot be patched."""
    if job.content_type != codec.JSON:
        return None
    try:
        merged = codec.merge_patch(job.payload, patch)
        same = job.payload and codec.encode(codec.decode(job.payload)) == merged
    except UsageError:
        return None
    return job.payload if same else merged


async def _edit_and_put_back(
    engine: Engine, where: JobFilter, taken: TakenJob, act: Redrive, patch: bytes
) -> int:
    """Edit the payload, then redrive, each on the version that the write before left.

    A process killed in between leaves an edited dead letter; the next pass recognises it, because
    the patch changes nothing more.
    """
    wanted = replace(where, ids=(taken.id,), states=_DEAD)
    for _ in range(_EDIT_TRIES_MAX):
        found = (await engine.find(wanted, limit=1)).jobs
        payload = patched(found[0], patch) if found else None
        if payload is None or found[0].version > taken.version + 1:
            return 0
        version = found[0].version
        unchanged = replace(wanted, version=version)
        if payload == found[0].payload:
            return await engine.amend(unchanged, act, limit=1)
        if version > taken.version:
            return 0
        edit = Edit(by=act.by, text=act.text, payload=payload)
        try:
            await engine.amend(unchanged, edit, limit=1)
        except UsageError:
            # The patch made the payload too large.
            return 0
    return 0


def _merge_patch(text: str) -> bytes:
    try:
        return codec.encode(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"edit is not JSON: {error}") from None


class DeadGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters with the same fingerprint. `type` and `text` are those of the newest one, `ids`
    the newest; names come with their counts. With `estimated` only the newest were read."""

    fingerprint: str | None
    count: int
    estimated: bool
    type: str
    text: str
    first_at: str | None
    last_at: str | None
    redriven: int
    tasks: dict[str, int]
    queues: dict[str, int]
    reasons: dict[str, int]
    tenants: dict[str, int]
    workers: dict[str, int]
    trend: tuple[int, ...]
    ids: tuple[str, ...]


class DeadGroupsView(msgspec.Struct, frozen=True, kw_only=True):
    """The largest groups first, with `total` dead letters in all and `hidden` in groups that are
    left out; with `estimated` these are lower bounds. A trend begins at `trend_from` in buckets of
    `bucket_ms`."""

    groups: tuple[DeadGroupView, ...]
    hidden: int
    total: int
    estimated: bool
    trend_from: str
    bucket_ms: int


class QuarantinedView(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was buried because the processes that ran it crashed. `words` is the end of the
    process's output, `output` the end of the job's own."""

    id: str
    queue: str
    task: str
    died_at: str
    crashes: int
    redrives: int
    signal: int | None
    exit_code: int | None
    type: str
    text: str
    words: str
    output: str
    workers: tuple[str, ...]


class Retried(msgspec.Struct, frozen=True, kw_only=True):
    """`found` dead letters matched, a lower bound with `more`; `capped` others had reached the
    redrive limit.
    """

    found: int
    more: bool
    capped: int
    retried: int


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """`found` dead letters matched, a lower bound with `more`."""

    found: int
    more: bool
    purged: int


def groups_view(found: DeadGroups) -> DeadGroupsView:
    """The groups with instants in RFC 3339."""
    return DeadGroupsView(
        groups=tuple(_group_view(group) for group in found.groups),
        hidden=found.hidden,
        total=found.total,
        estimated=found.estimated,
        trend_from=show_at(found.trend_from),
        bucket_ms=found.bucket_ms,
    )


def quarantined_view(job: Quarantined) -> QuarantinedView:
    """A quarantined job with its instant in RFC 3339."""
    return QuarantinedView(**{**asdict(job), "died_at": show_at(job.died_at)})


def _group_view(group: DeadGroup) -> DeadGroupView:
    known = bool(group.ids)
    first_at = show_at(group.first_at) if known else None
    last_at = show_at(group.last_at) if known else None
    return DeadGroupView(**{**asdict(group), "first_at": first_at, "last_at": last_at})


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter as its handler gets it, see `Holdfast.on_dead_letter`.

    `origin` is the queue in which the job died, `queue` the one that holds it: they differ if the
    former has a dead queue. `attempts` and `failures`, oldest first, are those of the job's own
    task. It is always flagged as `poison`.
    """

    id: str
    task: str
    queue: str
    origin: str
    reason: Reason | None
    attempts: int
    failures: tuple[Failure, ...]
    payload: bytes
    content_type: str = codec.JSON
    poison: bool = True
    crashes: int = 0
    redrives: int = 0
    created_at: int = 0
    died_at: int = 0
    key: str | None = None
    tenant: str | None = None
    labels: dict[str, str] = {}
    headers: dict[str, str] = {}

    @property
    def value(self) -> Any:
        """The payload as a Python value; the bytes themselves if it is not JSON."""
        return codec.decode(self.payload) if self.content_type == codec.JSON else self.payload


def dead_letter_of(job: Job) -> DeadLetter:
    """The dead letter of a job that `get` read."""
    ran = (EventKind.RETRIED, EventKind.BURIED)
    return DeadLetter(
        id=job.id,
        task=job.task,
        queue=job.queue,
        origin=job.origin or job.queue,
        reason=job.reason,
        attempts=job.attempt,
        failures=tuple(
            event.failure for event in job.events if event.kind in ran and event.failure is not None
        ),
        payload=job.payload,
        content_type=job.content_type,
        crashes=job.crashes,
        redrives=job.redrives,
        created_at=job.created_at,
        died_at=job.finished_at or 0,
        key=job.key,
        tenant=job.tenant,
        labels=job.labels,
        headers=job.headers,
    )


def dead_letter_task(queue: str) -> str:
    """The name under which workers know the handler of a queue's dead letters."""
    return f"dead-letter/{queue}"
