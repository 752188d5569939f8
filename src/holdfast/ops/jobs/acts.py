"""Acts on many jobs: the stored plan and progress of one, and the list of its jobs.

An act is counted first: the ids and versions of the matching jobs are stored as lists beside its
record. Upkeep's amender then changes each job that still has its version. Every change of the
record is a compare-and-set, so a stop and a step of the amender never overwrite each other.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple, assert_never

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from holdfast.core import bounds, checks, codec
from holdfast.core.amend import amendable
from holdfast.core.bounds import Count, Instant, Span
from holdfast.core.model import (
    COMMAND_TASK,
    WEBHOOK_TASK,
    Job,
    JobFilter,
    Record,
    State,
)
from holdfast.core.verdict import (
    Amendment,
    Cancel,
    Delete,
    Edit,
    Expedite,
    Move,
    Redrive,
    Retime,
)
from holdfast.engines.base import Engine
from holdfast.engines.extras import find_rows
from holdfast.errors import Forbidden, HoldfastError, NotFound, UsageError, WrongState
from holdfast.ops.jobs.amend import FINISHED, JobChanges
from holdfast.ops.jobs.text_search import EXAMINED_MAX, TextSearch
from holdfast.ops.records import TRIES_MAX, LogKind, RecordKind, Stored, check_same, remove_records

ACT_KIND = "act"
ACT_JOBS_KIND = "act-jobs"

JOBS_MAX = 100_000
"""The number of jobs that one act changes."""
JOBS_PER_LIST = 500
"""Ids in one stored list of an act: with the longest ids it stays below the bound of a record."""
ACTS_MAX = 100

_LISTS_MAX = -(-JOBS_MAX // JOBS_PER_LIST)
_PATCHED_AT_ONCE = 100
"""Payloads are patched one by one, so a step has fewer of them."""
_PAGE = 500
_PAGES_MAX = 600
_PAYLOAD_PAGE = 20
_EXAMINED_MAX = 10 * EXAMINED_MAX
_EXAMINED_BYTES_MAX = 128 * 1024 * 1024
_PATCH_MAX = 64 * 1024
_TEXT_MAX = 1_000
_QUEUES_MAX = bounds.BATCH_MAX

ActWord = Literal["cancel", "retry", "expedite", "move", "delay", "edit", "delete"]
ACT_OPTIONS: dict[ActWord, tuple[str, ...]] = {
    "cancel": (),
    "retry": ("delay",),
    "expedite": (),
    "move": ("queue", "expires"),
    "delay": ("delay",),
    "edit": ("patch", "priority", "expires", "labels", "headers"),
    "delete": ("force",),
}
"""The options of each act, besides `text`."""


class ActState(StrEnum):
    """COUNTING: the list of its jobs is not complete; it is being counted, or removed. A process
    that dies meanwhile leaves such an act behind."""

    COUNTING = "counting"
    COUNTED = "counted"
    RUNNING = "running"
    STOPPED = "stopped"
    DONE = "done"

    @property
    def ended(self) -> bool:
        """True if no further job is changed, unless a stopped act is run again."""
        return self in (ActState.STOPPED, ActState.DONE)


class ActPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The act, the jobs that it is about, and its options. `contains` is a text in the payload or
    in an error. `patch` is a JSON merge patch for each payload; labels and headers are added to the
    current ones. `text` is the reason."""

    act: ActWord
    wanted: JobFilter = JobFilter()
    contains: Annotated[str, Meta(max_length=200)] = ""
    text: Annotated[str, Meta(max_length=_TEXT_MAX)] = ""
    delay_ms: Span = 0
    force: bool = False
    queue: str | None = None
    expires_ms: Span | None = None
    patch: bytes | None = None
    priority: int | None = None
    labels: dict[str, str] | None = None
    headers: dict[str, str] | None = None

    @property
    def states(self) -> tuple[State, ...]:
        """The states of the jobs that the act can change. A retry without a state or ids means dead
        letters, so that finished jobs are not run again by accident."""
        if self.act == "retry" and self.wanted.states is None:
            return FINISHED if self.wanted.ids is not None else (State.DEAD,)
        return amendable(self.amendment(), self.wanted)

    @property
    def edits_each(self) -> bool:
        """True if the new values of a job depend on its old ones."""
        return self.patch is not None or self.labels is not None or self.headers is not None

    def amendment(self, by: str = "", text: str = "") -> Amendment:
        """The amendment of every job; if `edits_each`, only those values that are the same for
        all."""
        match self.act:
            case "cancel":
                return Cancel(by=by, text=text)
            case "retry":
                return Redrive(by=by, text=text, delay_ms=self.delay_ms)
            case "expedite":
                return Expedite(by=by, text=text)
            case "move":
                queue = self.queue or ""
                return Move(queue=queue, by=by, text=text, expires_ms=self.expires_ms)
            case "delay":
                return Retime(delay_ms=self.delay_ms, by=by, text=text)
            case "edit":
                return Edit(by=by, text=text, priority=self.priority, expires_ms=self.expires_ms)
            case "delete":
                return Delete(force=self.force)
            case never:
                assert_never(never)

    def changes(self, payload: bytes | None, text: str) -> JobChanges:
        """The changes of one job by an edit, with its new payload."""
        return JobChanges(
            payload=payload,
            priority=self.priority,
            expires_ms=self.expires_ms,
            labels=self.labels,
            headers=self.headers,
            text=text,
        )


class CountedJob(msgspec.Struct, frozen=True, array_like=True):
    """A job as it was counted; it is changed only if its version is still the same."""

    id: str
    version: Count


class ActJobs(msgspec.Struct, frozen=True, kw_only=True):
    """A list of jobs of an act. All were created before `created_before`: an id that was
    deleted and enqueued again since is another job."""

    jobs: Annotated[tuple[CountedJob, ...], Meta(max_length=JOBS_PER_LIST)]
    created_before: Count


class ActRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The progress of an act.

    `at` jobs of its list have been dealt with: `done` were changed, or deleted, `changed` had
    changed since they were counted, and `failed` could not be changed. `pending` jobs after them
    are in the hands of the process `holder`; with `repeated` another process may have changed some
    of them before. `queues` are those of its jobs, None if they are too many to list. `commands`
    means that some of its jobs run a command or send a request. `closed` means that its end is in
    the audit log.
    """

    id: str
    plan: ActPlan
    state: ActState = ActState.COUNTING
    count: Annotated[int, Meta(ge=0, le=JOBS_MAX)] = 0
    capped: bool = False
    states: dict[State, Count] = {}
    queues: Annotated[tuple[str, ...], Meta(max_length=_QUEUES_MAX)] | None = None
    commands: bool = False
    by: str = ""
    text: str = ""
    created_at: Instant = 0
    started_at: Instant | None = None
    ended_at: Instant | None = None
    at: Annotated[int, Meta(ge=0, le=JOBS_MAX)] = 0
    pending: Annotated[int, Meta(ge=0, le=JOBS_PER_LIST)] = 0
    holder: str = ""
    repeated: bool = False
    done: Count = 0
    changed: Count = 0
    failed: Count = 0
    closed: bool = False

    @property
    def left(self) -> int:
        """The number of jobs that have not been dealt with."""
        return self.count - self.at

    @property
    def mark(self) -> str:
        """The text in a job's timeline that names the act which changed it."""
        return f"act {self.id}" + (f": {self.plan.text}" if self.plan.text else "")

    @property
    def next_step(self) -> int:
        """The number of jobs in the next step, all of one list. It depends on `at` only, so that a
        repeated step has the same jobs."""
        step = JOBS_PER_LIST if self.plan.patch is None else min(JOBS_PER_LIST, _PATCHED_AT_ONCE)
        return min(step - self.at % step, self.left)


class StepResult(NamedTuple):
    """The outcome of some jobs of an act."""

    done: int = 0
    changed: int = 0
    failed: int = 0


def begin_step(act: ActRecord, holder: str) -> ActRecord:
    """The act with its next step in the hands of one process; repeated, if it was begun before."""
    again = act.pending > 0 or act.repeated
    return replace(act, pending=act.next_step, holder=holder, repeated=again)


def end_step(act: ActRecord, result: StepResult, now: int) -> ActRecord:
    """The act after its begun step; done if that was the last."""
    assert sum(result) == act.pending, (act, result)
    counted_ = replace(
        act,
        at=act.at + act.pending,
        pending=0,
        holder="",
        repeated=False,
        done=act.done + result.done,
        changed=act.changed + result.changed,
        failed=act.failed + result.failed,
    )
    if counted_.left:
        return counted_
    return replace(counted_, state=ActState.DONE, text="", ended_at=now)


def stopped(act: ActRecord, text: str, now: int) -> ActRecord:
    """The act, stopped for a reason."""
    return replace(act, state=ActState.STOPPED, text=text, ended_at=now, closed=False)


def check_plan(plan: ActPlan) -> None:
    """Raise UsageError unless the filter and the values of the plan are valid."""
    checks.check_filter(plan.wanted)
    if plan.act == "move" and plan.queue is None:
        raise UsageError('the act "move" needs the queue to move to')
    if plan.patch is not None:
        if len(plan.patch) > _PATCH_MAX:
            raise UsageError(f"the patch is too large: at most {_PATCH_MAX:,} bytes")
        codec.decode(plan.patch)
    changes = plan.changes(plan.patch, "")
    edit = changes.edit(Job(id="-", task="-", queue="-"), "")
    if plan.act == "edit" and edit is None:
        raise UsageError("nothing to change: give patch, priority, expires, labels or headers")
    checks.check_amendment(edit if plan.act == "edit" and edit is not None else plan.amendment())


def _check_stored(key: str, act: ActRecord) -> None:
    check_same("id", act.id, key)
    check_plan(act.plan)
    if act.at + act.pending > act.count or act.pending not in (0, act.next_step):
        raise ValueError("its progress is beyond its jobs")
    if act.done + act.changed + act.failed != act.at:
        raise ValueError("its counts do not add up")


def _check_jobs(key: str, part: ActJobs) -> None:
    id_, _, number = key.rpartition("/")
    if not id_ or not number.isdecimal():
        raise ValueError("its key is not that of a list of an act")
    if part.jobs:
        checks.check_filter(JobFilter(ids=tuple(job.id for job in part.jobs)))


ACTS = RecordKind(ACT_KIND, ActRecord, strict=True, check=_check_stored)
ACT_JOBS = LogKind(ACT_JOBS_KIND, ActJobs, label="act", strict=True, check=_check_jobs)


class Acts:
    """The acts of one store. `wall_ms` stamps the times that people read."""

    def __init__(self, engine: Engine, wall_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._wall_ms = wall_ms

    async def count(
        self, plan: ActPlan, by: str, *, seen: Engine | None = None, commands: bool = True
    ) -> ActRecord:
        """Store a new act with the list of its jobs, durable on return. Jobs are read through
        `seen`, the engine as the caller may use it. Without `commands`, an edit of jobs that run a
        command or send a request is Forbidden.
        """
        plan = _checked_plan(plan)
        await self._make_room()
        act = await self._create(plan, by)
        try:
            listed = await self._list_jobs(act, seen or self._engine, commands=commands)
            if await ACTS.save(self._engine, act.id, listed, 1):
                return listed
        except (Exception, asyncio.CancelledError):
            with suppress(HoldfastError):
                await asyncio.shield(remove_act(self._engine, act, 1))
            raise
        # Upkeep removed it, because counting took so long.
        await remove_act(self._engine, act, 1)
        raise ACTS.busy(act.id)

    async def run(self, id: str, by: str) -> ActRecord:
        """Let upkeep carry out an act, or continue one that was stopped."""

        def change(act: ActRecord | None) -> ActRecord:
            found = _existing(id, act)
            if found.state is ActState.RUNNING:
                return found
            if found.state is ActState.DONE:
                raise WrongState(f"act {id} is done: count a new one")
            now = self._wall_ms()
            return replace(
                found,
                state=ActState.RUNNING,
                by=by,
                text="",
                started_at=now if found.started_at is None else found.started_at,
                ended_at=None,
                closed=False,
            )

        return await self._update(id, change)

    async def stop(self, id: str, by: str) -> ActRecord:
        """Stop an act. Jobs that are being changed at this moment are finished first; an act that
        has ended does not change."""

        def change(act: ActRecord | None) -> ActRecord:
            found = _existing(id, act)
            return found if found.state.ended else stopped(found, f"by {by}", self._wall_ms())

        return await self._update(id, change)

    async def _update(self, id: str, change: Callable[[ActRecord | None], ActRecord]) -> ActRecord:
        changed = await ACTS.update(self._engine, id, change)
        assert changed is not None
        return changed

    async def _make_room(self) -> None:
        stored = [each async for each in ACTS.read_all(self._engine)]
        for each in oldest_to_remove(stored):
            assert each.value is not None
            await remove_act(self._engine, each.value, each.version)

    async def _create(self, plan: ActPlan, by: str) -> ActRecord:
        now = self._wall_ms()
        for _ in range(TRIES_MAX):
            id_ = f"{now // 1_000:x}-{secrets.token_hex(3)}"
            act = ActRecord(id=id_, plan=plan, by=by, created_at=now)
            if await ACTS.create(self._engine, id_, act):
                return act
        raise ACTS.busy("(new)")

    async def _list_jobs(self, act: ActRecord, seen: Engine, *, commands: bool) -> ActRecord:
        """Store the list of matching jobs, and return the counted act."""
        states: Counter[State] = Counter()
        queues: set[str] = set()
        rest: list[Job] = []
        number = count = 0
        has_commands = capped = False
        async for jobs, more in _matching(seen, act.plan):
            room = JOBS_MAX - count
            capped = more or len(jobs) > room
            for job in jobs[:room]:
                has_commands = has_commands or job.task in (COMMAND_TASK, WEBHOOK_TASK)
                if has_commands and act.plan.act == "edit" and not commands:
                    raise Forbidden(
                        "some of these jobs run commands or send requests: to edit them, the token"
                        ' needs the scope "run-commands"; or restrict the filter to another task'
                    )
                states[job.state] += 1
                queues.add(job.queue)
            count += min(room, len(jobs))
            rest += jobs[:room]
            while len(rest) >= JOBS_PER_LIST:
                await self._save_job_list(act, number, rest[:JOBS_PER_LIST])
                rest, number = rest[JOBS_PER_LIST:], number + 1
        if rest:
            await self._save_job_list(act, number, rest)
        named = (act.plan.wanted.queue,) if act.plan.wanted.queue is not None else None
        known = tuple(sorted(queues)) if 0 < len(queues) <= _QUEUES_MAX else None
        return replace(
            act,
            state=ActState.COUNTED,
            count=count,
            capped=capped,
            states=dict(states),
            queues=named or known,
            commands=has_commands,
        )

    async def _save_job_list(self, act: ActRecord, number: int, jobs: Sequence[Job]) -> None:
        part = ActJobs(
            jobs=tuple(CountedJob(job.id, job.version) for job in jobs),
            created_before=max(job.created_at for job in jobs) + 1,
        )
        if not await ACT_JOBS.create(self._engine, list_key(act.id, number), part):
            raise ACT_JOBS.busy(act.id)


async def read_act(engine: Engine, id: str) -> ActRecord:
    """One act. Raises NotFound, also while it is being counted."""
    stored = await ACTS.read(engine, id)
    return _existing(id, None if stored is None else ACTS.require(stored.record))


async def read_step(engine: Engine, act: ActRecord) -> ActJobs:
    """The jobs of the begun step. Raises NotFound or ConfigError if the list is not readable."""
    number, start = divmod(act.at, JOBS_PER_LIST)
    stored = await ACT_JOBS.read(engine, list_key(act.id, number))
    if stored is None:
        raise NotFound("the list of its jobs is gone")
    part = ACT_JOBS.require(stored.record)
    jobs = part.jobs[start : start + act.pending]
    if len(jobs) != act.pending:
        raise NotFound("the list of its jobs is too short")
    return replace(part, jobs=jobs)


def is_late(act: ActRecord, age_ms: int, tolerance_ms: int) -> bool:
    """True if the next step is late by more than `tolerance_ms`: then no upkeep is running."""
    return act.state is ActState.RUNNING and age_ms > tolerance_ms


async def remove_act(engine: Engine, act: ActRecord, version: int) -> None:
    """Remove an act and the list of its jobs, unless it was changed. Its record goes last, so that
    upkeep finds what a process that dies in between leaves."""
    if act.state is not ActState.COUNTING:
        gone = ActRecord(id=act.id, plan=act.plan)
        if not await ACTS.save(engine, act.id, gone, version):
            return
        version += 1
    await remove_job_lists(engine, act)
    await ACTS.save(engine, act.id, None, version)


async def remove_job_lists(engine: Engine, act: ActRecord) -> None:
    """Remove the lists of an act's jobs. They are written once, so they need not be read."""
    number = _LISTS_MAX if act.state is ActState.COUNTING else -(-act.count // JOBS_PER_LIST)
    keys = (list_key(act.id, each) for each in range(number))
    records = [Record(kind=ACT_JOBS_KIND, key=key, value=None, version=1) for key in keys]
    await remove_records(engine, records)


def list_key(id: str, number: int) -> str:
    """The key of one list of an act; keys sort by number."""
    return f"{id}/{number:03d}"


def oldest_to_remove(stored: Sequence[Stored[ActRecord]]) -> list[Stored[ActRecord]]:
    """The acts to remove before a new one is stored: ended ones first, then those that were only
    counted, each from the oldest. Raises WrongState if all of them run."""
    readable = [each for each in stored if each.value is not None]
    surplus = len(readable) - ACTS_MAX + 1
    if surplus <= 0:
        return []
    idle = [each for each in readable if each.value is not None and _is_idle(each.value)]
    idle.sort(key=lambda each: (_keep_rank(each.value), each.key))
    if len(idle) < surplus:
        raise WrongState(f"there are already {ACTS_MAX} acts: stop some, or wait until they end")
    return idle[:surplus]


def _is_idle(act: ActRecord) -> bool:
    return not act.pending and (act.closed or act.state is ActState.COUNTED)


def _keep_rank(act: ActRecord | None) -> int:
    ranks = {ActState.DONE: 0, ActState.COUNTED: 1, ActState.STOPPED: 2}
    return 0 if act is None else ranks.get(act.state, 3)


def _existing(id: str, act: ActRecord | None) -> ActRecord:
    if act is None or act.state is ActState.COUNTING:
        raise NotFound(f"unknown act {id[:80]!r}: see GET /v1/acts")
    return act


def _checked_plan(plan: ActPlan) -> ActPlan:
    """The plan as it will be read back. UsageError if it is not valid."""
    plan = replace(plan, text=checks.clean_text(plan.text, _TEXT_MAX))
    try:
        read = msgspec.json.decode(msgspec.json.encode(plan), type=ActPlan)
    except (msgspec.MsgspecError, TypeError) as error:
        raise UsageError(f"the act cannot be stored: {error}") from None
    check_plan(read)
    return read


async def _matching(seen: Engine, plan: ActPlan) -> AsyncIterator[tuple[list[Job], bool]]:
    """The jobs that the act can change, newest first, in bounded reads: at most one more than an
    act may have. The flag is true if the walk ends before all jobs were examined."""
    states = plan.states
    if not states:
        return
    wanted = replace(plan.wanted, states=states)
    search = TextSearch(seen, plan.contains) if plan.contains else None
    found, after = 0, None
    pages_max = _PAGES_MAX if search is None else _PAGES_MAX + _EXAMINED_MAX // _PAYLOAD_PAGE
    for page_number in range(1, pages_max + 1):
        limit = min(_PAGE, JOBS_MAX + 1 - found)
        if search is None:
            page = await find_rows(seen, wanted, limit=limit, after=after)
            jobs: Iterable[Job] = page.jobs
        else:
            limit = min(limit, _PAYLOAD_PAGE)
            page = await seen.find(wanted, limit=limit, after=after)
            jobs = await search.matching(page.jobs)
        after = page.after
        # The worker of a job whose cancel was requested has been asked already.
        fitting = [job for job in jobs if not (plan.act == "cancel" and job.cancel_requested)]
        found += len(fitting)
        examined = search is not None and (
            search.examined >= _EXAMINED_MAX or search.size >= _EXAMINED_BYTES_MAX
        )
        ends = examined or page_number == pages_max or found > JOBS_MAX
        yield fitting, ends and after is not None
        if ends or after is None:
            return
