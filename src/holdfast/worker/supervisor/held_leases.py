"""The leases that a worker holds: each job from its lease until its verdict is settled.

A held job waits for a child, runs in a call, then waits until its verdict is settled. All leases
are renewed in batches, in the supervisor, where no handler can delay a renewal. Jobs of a strict
group that were leased together run one at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.lifecycle import is_expired
from holdfast.core.model import Job, Lease, Note, Renewal
from holdfast.core.verdict import Bury, Complete, Forward, Verdict
from holdfast.engines.base import Engine
from holdfast.errors import EngineClosed, EngineError, OutcomeUnknown
from holdfast.process import boot_s

_log = logging.getLogger("holdfast.worker")

RunnerKind: TypeAlias = Literal["python", "solo", "command", "webhook"]
RUNNER_KINDS: tuple[RunnerKind, ...] = ("python", "solo", "command", "webhook")
"""Where a job runs: in a child shared with others, in a child of its own, as a command, or in the
child that sends webhooks."""
_START_MARGIN_S_MAX = 0.2
_NOTES_S = 0.5
"""The longest delay before a note reaches the store."""
_TICK_S_MIN, _TICK_S_MAX = 0.005, 0.25
_PAUSE_S = 0.25

_T = TypeVar("_T")


class HeldLease(msgspec.Struct, eq=False, gc=False):
    """One leased job.

    `call` is the number of the call that runs it, 0 before. A `forced` job was cancelled, and its
    attempt must end at once. All instants are of the boot clock: `came_at` is when it became ready
    to start, `renewed_at` when the current lease was *requested* from the store. The answer may
    have been read much later.
    """

    lease: Lease
    renewed_at: float
    kind: RunnerKind
    came_at: float = msgspec.field(default_factory=boot_s)
    begin_before: float = 0.0
    """The latest start under the current lease: soon after it another worker may have the job."""
    call: int = 0
    lost: bool = False
    cancel_known: bool = False
    forced: bool = False
    note: Note | None = None
    output: bytes | None = None
    """All output of this attempt so far; a stored note is forgotten."""
    verdict: Verdict | None = None

    def __post_init__(self) -> None:
        self.begin_before = self.renewed_at + _startable_s(self.lease.lease_ms)

    @property
    def job(self) -> Job:
        return self.lease.job

    def renew_at(self, part: int = 3) -> float:
        """When to renew: after a third of the lease, so that two renewals may fail."""
        return self.renewed_at + self.lease.lease_ms / part / 1000

    def renewed(self, lease: Lease, requested_at: float) -> None:
        """Hold the renewed lease. A dead letter keeps the task and payload of its handler."""
        job = self.lease.job
        if job.is_dead_letter:
            renewed = replace(
                lease.job, task=job.task, payload=job.payload, content_type=job.content_type
            )
            lease = replace(lease, job=renewed)
        self.lease = lease
        self.renewed_at = requested_at
        self.begin_before = requested_at + _startable_s(lease.lease_ms)

    def add_note(self, note: Note) -> None:
        """Fields of the new note replace those of the old one; missing fields stay."""
        if note.output is not None:
            self.output = note.output
        if self.note is None:
            self.note = note
            return
        changed = {
            name: value
            for name in ("progress", "checkpoint", "output")
            if (value := getattr(note, name)) is not None
        }
        self.note = replace(self.note, **changed)


@lru_cache(maxsize=64)
def _startable_s(lease_ms: int) -> float:
    """How long after its request a lease allows a start. The last part of the lease is a margin for
    the time until the handler's first step."""
    lease_s = lease_ms / 1000
    return lease_s - min(lease_s / 10, _START_MARGIN_S_MAX)


class HeldLeases:
    """All leases of one worker, oldest first. A lost job may be leased again before its first run
    has ended, so a job can be here twice.
    """

    def __init__(self) -> None:
        self._held: dict[HeldLease, None] = {}
        self.active: dict[RunnerKind, int] = dict.fromkeys(RUNNER_KINDS, 0)
        """Jobs that run or wait to run: they are not lost and have no verdict."""

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, held: HeldLease) -> bool:
        return held in self._held

    @property
    def active_count(self) -> int:
        return sum(self.active.values())

    def add(self, leased: list[HeldLease]) -> Counter[RunnerKind]:
        """Hold newly leased jobs; returns the number of each kind."""
        self._held.update(dict.fromkeys(leased))
        counts = Counter([held.kind for held in leased])
        for kind, count in counts.items():
            self.active[kind] += count
        return counts

    def decide(self, held: HeldLease, verdict: Verdict) -> bool:
        """Record the verdict. False if the job is lost or already has one: the first verdict
        stands.
        """
        if held.lost or held.verdict is not None:
            return False
        held.verdict = verdict
        self.active[held.kind] -= 1
        return True

    def decide_all(self, jobs: list[HeldLease], verdict: Verdict) -> None:
        """Record the verdict of jobs of one kind, which are not lost and have none yet."""
        for held in jobs:
            held.verdict = verdict
        if jobs:
            self.active[jobs[0].kind] -= len(jobs)

    def lose(self, held: HeldLease) -> None:
        """The lease is gone. The job stays here until its run has ended."""
        if not held.lost and held.verdict is None:
            self.active[held.kind] -= 1
        held.lost = True

    def drop(self, *jobs: HeldLease) -> None:
        """Forget the jobs: the engine has answered for them, or a lost run has ended."""
        for held in jobs:
            self._held.pop(held, None)

    def all(self) -> list[HeldLease]:
        return list(self._held)


class Renewer:
    """Renews each lease after a third of its duration, and reports lost ones. A renewal also
    carries the notes of the run so far, and brings back an operator's cancel request. Where each
    renewal is a request of its own, leases are renewed after half of their duration, together with
    those that would be due soon: so the requests are full.

    `lost` and `cancelled` are called once for each job, `renewed` after each answer.
    """

    def __init__(
        self,
        engine: Engine,
        held: HeldLeases,
        lost: Callable[[HeldLease], None],
        cancelled: Callable[[HeldLease], None],
        renewed: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._traits = engine.traits
        self._held = held
        self._lost = lost
        self._cancelled = cancelled
        self._renewed = renewed
        self._at_once = False
        self._sweeps = not self._traits.atomic
        self._warned = False

    def at_once(self) -> None:
        """Renew everything at the next tick, to learn of an operator's request."""
        self._at_once = True

    async def run(self) -> None:
        """Renew until cancelled; retries while the engine is unreachable."""
        while True:
            try:
                tick = await self._turn()
            except EngineClosed:
                raise
            except EngineError as error:
                _log.warning("cannot tell the store that jobs are still running: %s", error)
                tick = _PAUSE_S
            await asyncio.sleep(tick)

    async def _turn(self) -> float:
        """Renew the leases that are due; returns the seconds until the next turn."""
        now = boot_s()
        everything, self._at_once = self._at_once, False
        due: list[HeldLease] = []
        soon: list[HeldLease] = []
        part = 2 if self._sweeps else 3
        shortest_ms = 10_000
        for held in self._held.all():
            if held.lost:
                continue
            shortest_ms = min(shortest_ms, held.lease.lease_ms)
            noted = held.note is not None and held.verdict is None and self._traits.notes
            note_due = noted and now >= held.renewed_at + _NOTES_S
            if everything or note_due or now >= held.renew_at(part):
                due.append(held)
            elif self._sweeps and now >= held.renew_at(2 * part):
                soon.append(held)
        due += soon if due else []
        try:
            for at in range(0, len(due), bounds.BATCH_MAX):
                await self._renew(due[at : at + bounds.BATCH_MAX])
        except EngineError:
            self._at_once = self._at_once or everything
            raise
        return min(max(shortest_ms / 12_000, _TICK_S_MIN), _TICK_S_MAX)

    async def _renew(self, due: list[HeldLease]) -> None:
        requested_at = boot_s()
        notes = [None if held.verdict is not None else held.note for held in due]
        stored = notes if self._traits.notes else [None] * len(notes)
        if stored is not notes and any(notes) and not self._warned:
            self._warned = True
            _log.warning(
                "the %s engine stores no progress, checkpoints and output: those of jobs are"
                " dropped",
                self._traits.name,
            )
        renewals = [
            Renewal(lease=held.lease, note=note) for held, note in zip(due, stored, strict=True)
        ]
        try:
            answers = dict(enumerate(await self._engine.renew(renewals)))
        except OutcomeUnknown as error:
            self._apply(due, notes, error.known, requested_at)
            raise
        self._apply(due, notes, answers, requested_at)

    def _apply(
        self,
        due: list[HeldLease],
        notes: list[Note | None],
        answers: Mapping[int, Lease | None],
        requested_at: float,
    ) -> None:
        for at, lease in answers.items():
            held, note = due[at], notes[at]
            if held not in self._held:
                continue
            if lease is None:
                # A verdict may still be accepted where a renewal comes too late.
                if held.verdict is None:
                    self._held.lose(held)
                    self._lost(held)
                continue
            held.renewed(lease, requested_at)
            if note is not None and held.note is note:
                held.note = None
            if lease.cancel_requested and not held.cancel_known:
                held.cancel_known = True
                self._cancelled(held)
        self._renewed()


class GroupStep(NamedTuple):
    """The members that may start or must be released after the job before them has ended."""

    start: HeldLease | None = None
    release: tuple[HeldLease, ...] = ()


class GroupOrder:
    """Members of strict groups that one request leased together. Pure: it decides which job may
    start next and which must be released. The first of each group runs, is about to run, or waits
    to be settled.
    """

    def __init__(self) -> None:
        self._members: dict[HeldLease, list[HeldLease]] = {}

    def __bool__(self) -> bool:
        return bool(self._members)

    def add(self, leased: list[HeldLease]) -> list[HeldLease]:
        """Jobs of one request; returns those that may start now."""
        if all(held.lease.job.group is None for held in leased):
            return leased
        groups = by_group(leased, lambda held: held.job)
        for members in groups:
            if len(members) > 1:
                self._members.update(dict.fromkeys(members, members))
        return [members[0] for members in groups]

    def is_behind(self, held: HeldLease) -> bool:
        """True if the job waits for another of its group."""
        members = self._members.get(held)
        return members is not None and members[0] is not held

    def waiting(self, kind: RunnerKind) -> int:
        """The number of jobs that wait for another and need no slot. Each group has one job that
        needs one, or will as soon as the store has answered.
        """
        fronts = (members for held, members in self._members.items() if members[0] is held)
        waiting = ([each for each in members if each.verdict is None][1:] for members in fronts)
        return sum(held.kind == kind for behind in waiting for held in behind)

    def settled(self, held: HeldLease, now: int) -> GroupStep:
        """The engine has answered for the verdict on the job, or its lease is lost."""
        members = self._members.pop(held, None)
        if members is None:
            return GroupStep()
        index = members.index(held)
        if not lets_next_start(held):
            return GroupStep(release=self._cut(members, index))
        del members[index]
        first = members[0]
        if index > 0 or first.verdict is not None:
            step = GroupStep()
        elif is_expired(first.job, now):
            # Its job waits in the store again, so it must not start here.
            return GroupStep(release=self._cut(members, 0))
        else:
            step = GroupStep(start=first)
        if len(members) == 1:
            del self._members[first]
        return step

    def clear(self) -> list[HeldLease]:
        """Forget everything; returns the waiting jobs."""
        waiting = [held for held in self._members if self.is_behind(held) and held.verdict is None]
        self._members.clear()
        return waiting

    def _cut(self, members: list[HeldLease], index: int) -> tuple[HeldLease, ...]:
        """Remove the members from there on; returns those without a verdict of their own."""
        behind = members[index:]
        del members[index:]
        for each in (*behind, *(members if len(members) == 1 else ())):
            self._members.pop(each, None)
        return tuple(each for each in behind if each.verdict is None and not each.lost)


def by_group(entries: Iterable[_T], job_of: Callable[[_T], Job]) -> list[list[_T]]:
    """Entries of one strict group together, in order; every other entry on its own."""
    result: list[list[_T]] = []
    groups: dict[tuple[str, str], list[_T]] = {}
    for entry in entries:
        job = job_of(entry)
        members = [] if job.group is None else groups.setdefault((job.queue, job.group), [])
        if not members:
            result.append(members)
        members.append(entry)
    return result


def lets_next_start(held: HeldLease) -> bool:
    """True if the next job of the group may certainly start. A job that was put back goes first
    again; a retry or release of a job with a cancel request ends as cancelled.
    """
    if held.lost or held.verdict is None:
        return False
    ends = isinstance(held.verdict, Complete | Bury | Forward)
    return ends or held.lease.cancel_requested
