"""Enqueues jobs. A batch of plain jobs is one statement. For any other batch, queues, keys and
known ids are read under locks, `EnqueuePlan` decides on each job in order without I/O, and the
result is written in one transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from holdfast.core import bounds, checks, lifecycle
from holdfast.core.dependencies import Arrangement, arrange, can_enqueue_follow_ups
from holdfast.core.lanes import lane_of
from holdfast.core.lifecycle import ParentEffect
from holdfast.core.model import Job, NewJob, Queue, Receipt, State, Status
from holdfast.engines.postgres import write
from holdfast.engines.postgres.flow import dependencies
from holdfast.engines.postgres.queues import QueueSet, read_queues
from holdfast.engines.postgres.rows import CODES, columns
from holdfast.engines.postgres.script import (
    STATEMENT_BYTES_MAX,
    CallContext,
    Restart,
    Script,
    Statement,
    only_value,
)
from holdfast.engines.postgres.write import LockedJob, add_queues, have_flow, lock_flow, lock_jobs
from holdfast.errors import UsageError

_ADD_PLAIN = """
SELECT $schema.insert_plain_jobs($1::int, $2::bigint, $3::text[], $4::int, $5::int[], $6::int[],
    $7::text[], $8::text[], $9::bytea[], $10::smallint[], $11::bigint[], $12::bigint[],
    $13::text[], $14::text[], $15::bigint[], $16::bytea[])
"""
_LOCK_QUEUES = """
SELECT FROM $schema.queues WHERE number = ANY ($1::int[]) ORDER BY number FOR NO KEY UPDATE
"""
_DEPTH = """
SELECT count(*) FROM (
    SELECT FROM $schema.jobs WHERE queue = $1::int AND state = 0 AND holds = 0 LIMIT $2::bigint
) w
UNION ALL
SELECT count(*) FROM (
    SELECT FROM $schema.jobs WHERE queue = $1::int AND state = 0 AND holds <> 0 LIMIT $2::bigint
) w
"""
_LOCK_KEYS = """
SELECT * FROM $schema.hold_keys($1::int, $2::int[], $3::text[], $4::text[], $5::bigint[])
"""
_WRITE_KEYS = "SELECT $schema.keep_keys($1::int[], $2::text[], $3::text[], $4::bigint[])"
_KNOWN = "SELECT id_, is_left FROM $schema.known_ids($1::int, $2::text[])"


def enqueue(context: CallContext, jobs: Sequence[NewJob]) -> Script[list[Receipt]]:
    """Add the admitted jobs; returns a receipt for each job, in the order given."""
    if _is_plain(jobs):
        known = only_value((yield Statement(_ADD_PLAIN, _plain_values(context, jobs), alone=True)))
        if known is not None:
            return _plain_receipts(jobs, known)
    return (yield from _enqueue_carefully(context, jobs))


def _is_plain(jobs: Sequence[NewJob]) -> bool:
    """Whether only the settings of their queues decide about the jobs."""
    if not jobs or len({job.id for job in jobs}) < len(jobs):
        return False
    total = 0
    try:
        for job in jobs:
            if job.key is not None or job.group is not None or job.after:
                return False
            checks.check_job(job)
            total += len(job.payload)
    except UsageError:
        return False
    return total <= STATEMENT_BYTES_MAX


def _plain_values(context: CallContext, jobs: Sequence[NewJob]) -> tuple[Any, ...]:
    """The jobs sorted by id, because new ids are locked in that order, and their places in the
    batch. Generated ids ascend, so most batches are already sorted."""
    places: list[int] = []
    ids = [job.id for job in jobs]
    if any(former > latter for former, latter in pairwise(ids)):
        places = sorted(range(len(jobs)), key=ids.__getitem__)
        jobs = [jobs[place] for place in places]
    names = sorted({job.queue for job in jobs})
    refs = {name: position for position, name in enumerate(names, 1)}
    ids, tasks, payloads, ranks, delays, expiries, _, *rest = write.job_columns(jobs)
    return (
        context.ns, context.given_ms, names, max(map(len, payloads)),
        [refs[job.queue] for job in jobs] if len(names) > 1 else [],
        [place + 1 for place in places],
        ids, tasks, payloads, ranks, delays, expiries, *rest,
    )  # fmt: skip


def _plain_receipts(jobs: Sequence[NewJob], known: Sequence[str]) -> list[Receipt]:
    if not known:
        return [Receipt(id=job.id, status=Status.NEW) for job in jobs]
    old = set(known)
    return [
        Receipt(id=job.id, status=Status.DUPLICATE if job.id in old else Status.NEW) for job in jobs
    ]


def _enqueue_carefully(context: CallContext, jobs: Sequence[NewJob]) -> Script[list[Receipt]]:
    names = {job.queue for job in jobs if bounds.QUEUE_NAME.match(job.queue)}
    queues = yield from read_queues(context, names | context.effects.queues)
    valid = [job for job in jobs if _is_valid(job)]
    locked = yield from lock_flow(context, valid, queues)
    order, circular = yield from _arrange(context, jobs)
    plan = yield from make_plan(context, valid, queues, locked=locked)
    yield from _count_waiting(plan, jobs)
    receipts = {place: plan.enqueue(jobs[place], circular.get(place)) for place in order}
    yield from write_plan(context, plan, locked=locked)
    return [receipts[place] for place in range(len(jobs))]


def _is_valid(job: NewJob) -> bool:
    """Whether the job is within the bounds of every queue; others are not sent to the database."""
    try:
        checks.check_job(job)
    except UsageError:
        return False
    return True


def _arrange(context: CallContext, jobs: Sequence[NewJob]) -> Script[Arrangement]:
    """The order in which the jobs are admitted, parents first, and the jobs in a dependency
    cycle.
    """
    if not any(job.after for job in jobs):
        return list(range(len(jobs))), {}
    ids = [job.id for job in jobs if bounds.JOB_ID.match(job.id)]
    rows = yield Statement(_KNOWN, (context.ns, ids))
    return arrange(jobs, {id_ for id_, is_left in rows if not is_left})


def make_plan(
    context: CallContext,
    jobs: Sequence[NewJob],
    queues: QueueSet,
    *,
    locked: bool,
    settled: Collection[str] = (),
) -> Script[EnqueuePlan]:
    """Lock and read everything that decides about the jobs: first their keys, then all job rows
    together, including those of `settled` ids. The plan gets a number for each job and settled
    id.
    """
    now, numbers = yield from write.draw_numbers(context, len(jobs) + len(settled))
    plan = EnqueuePlan(now, numbers, queues)
    holders = yield from _lock_keys(context, plan, jobs)
    if holders and not locked and (yield from have_flow(context, holders)):
        # The rows of such jobs are locked only under the flow lock.
        context.effects.locks = True
        raise Restart
    known = (yield Statement(_KNOWN, (context.ns, [job.id for job in jobs]))) if jobs else []
    plan.known.update(id_ for id_, is_left in known if not is_left)
    parents = {id_ for job in jobs for id_ in job.after}
    # A job that a dropped queue left behind is removed when a new one takes its id.
    others = {*holders, *settled, *(id_ for id_, is_left in known if is_left)}
    if not others:
        plan.states |= yield from dependencies.lock_parents(context, parents)
        return plan
    with_payload = bool(holders) or queues.reads_payload
    found = yield from lock_jobs(context, others | parents, with_payload=with_payload)
    plan.states |= {
        id_: dependencies.PARENT_STATES[found[id_].before.state_code]
        for id_ in parents & found.keys()
    }
    held = {id_: job for id_, job in found.items() if id_ in others}
    names = {job.before.queue for job in held.values()}
    yield from add_queues(context, queues, names, locked=locked)
    # The jobs of a queue that was dropped in the meantime are gone.
    plan.held = {id_: job for id_, job in held.items() if job.before.queue in queues}
    return plan


def _lock_keys(context: CallContext, plan: EnqueuePlan, jobs: Sequence[NewJob]) -> Script[set[str]]:
    """Lock the keys of new jobs and return the ids of the jobs that hold them."""
    wanted: dict[tuple[str, str], NewJob] = {}
    for job in jobs:
        if job.key is not None and job.queue in plan.queues:
            wanted.setdefault((job.queue, job.key), job)
    if not wanted:
        return set()
    names = {plan.queues.number(queue): queue for queue, _ in wanted}
    values = [
        (plan.queues.number(queue), key, job.id, plan.now + job.key_window_ms)
        for (queue, key), job in wanted.items()
    ]
    rows = yield Statement(_LOCK_KEYS, (context.ns, *columns(values, 4)))
    for number, key, id_, until, is_new in rows:
        plan.stored[names[number], key] = KeyHolder(id_, until)
        plan.keys[names[number], key] = None if is_new else KeyHolder(id_, until)
    return {holder.id for holder in plan.keys.values() if holder is not None}


def _count_waiting(plan: EnqueuePlan, jobs: Sequence[NewJob]) -> Script[None]:
    """Count the waiting jobs of queues with `max_depth`, one enqueuing call at a time."""
    bounded: dict[int, Queue] = {}
    for name in {job.queue for job in jobs}:
        queue = plan.queues.find(name)
        if queue is not None and queue.max_depth is not None:
            bounded[plan.queues.number(name)] = queue
    if not bounded:
        return
    yield Statement(_LOCK_QUEUES, (sorted(bounded),))
    for number, queue in sorted(bounded.items()):
        rows = yield Statement(_DEPTH, (number, queue.max_depth))
        plan.depth[queue.name] = sum(row[0] for row in rows)


def write_plan(context: CallContext, plan: EnqueuePlan, *, locked: bool) -> Script[None]:
    """Write the decisions of a plan."""
    parent_counts = {child.seq: len(parents) for child, parents in plan.children}
    yield from write.add_jobs(context, plan.now, plan.added, plan.queues, parent_counts)
    yield from dependencies.link(context, plan.children)
    if plan.orphans:
        yield from dependencies.cancel_orphans(context, plan.orphans)
    held = plan.held.values()
    yield from write.rewrite(context, held, plan.queues, now=plan.now, locked=locked)
    changed = [
        (plan.queues.number(queue), key, holder and holder.id, holder and holder.until)
        for (queue, key), holder in plan.keys.items()
        if holder != plan.stored.get((queue, key))
    ]
    if changed:
        yield Statement(_WRITE_KEYS, columns(changed, 4))


class KeyHolder(NamedTuple):
    """The id of the job that holds a key, and when the window of the key ends."""

    id: str
    until: int


class EnqueuePlan:
    """The state that decides about new jobs (known ids, keys, parents), and the decisions so far:
    `added`, `children`, `orphans`, and the changes to `held` and `keys`."""

    def __init__(self, now: int, numbers: Iterator[int], queues: QueueSet) -> None:
        self.now = now
        self.numbers = numbers
        self.queues = queues
        self.known: set[str] = set()
        # The holder of each key now, and as it is stored.
        self.keys: dict[tuple[str, str], KeyHolder | None] = {}
        self.stored: dict[tuple[str, str], KeyHolder] = {}
        # Locked jobs, and jobs of the batch that hold a key, by id.
        self.held: dict[str, LockedJob] = {}
        self.depth: Counter[str] = Counter()
        # New jobs by the number they arrive with.
        self.added: dict[int, NewJob] = {}
        self._added_ids: set[str] = set()
        # States of parents; new jobs with the parents they wait for; and new jobs, by number, that
        # can never run because of how a parent ended: that parent and the code of its state.
        self.states: dict[str, State] = {}
        self.children: list[tuple[Job, list[str]]] = []
        self.orphans: dict[int, tuple[str, int | None]] = {}
        # Jobs that this transaction ends: they hold their key no longer than its window.
        self.ended: set[str] = set()

    def enqueue(self, new: NewJob, circle: str | None = None) -> Receipt:
        """Admit, merge or refuse one job; `circle` describes the dependency cycle that it is in."""
        queue = self.queues.find(new.queue)
        try:
            queue = checks.check_new(new, queue)
            if new.id in self.known:
                return self._duplicate(new.id)
            if circle is not None:
                raise checks.circular(new.id, circle)
            holder = self._holder(new)
            if holder is not None:
                self._meet(holder, new, queue)
                return self._duplicate(holder)
            for parent in new.after:
                if parent not in self.states:
                    raise checks.unknown_parent(new.id, parent)
            lane_of(new, queue, strict=True)
            checks.check_room(queue, self.depth[queue.name])
        except UsageError as error:
            return checks.refusal(new.id, error)
        return Receipt(id=new.id, status=Status.NEW, seq=self._admit(new))

    def follow_up(self, then: Sequence[NewJob]) -> None:
        """Admit follow-up jobs, also to a full or closed queue. One whose id is known or whose key
        is held is skipped."""
        for place in arrange(then, self.known)[0]:
            new = then[place]
            if new.id not in self.known and self._holder(new) is None:
                self._admit(new)

    def may_follow(self, then: Sequence[NewJob], done: str) -> bool:
        """Whether all follow-up jobs could be admitted once the job `done` is finished."""
        return not then or can_enqueue_follow_ups(
            then,
            arrange(then, self.known),
            queue_of=self._queue,
            is_known=self.known.__contains__,
            is_held=lambda new: self._holder(new, done) is not None,
            is_orphan=lambda new, coming: any(
                parent not in self.states and parent not in coming for parent in new.after
            ),
        )

    def _queue(self, name: str) -> Queue:
        queue = self.queues.find(name)
        assert queue is not None
        return queue

    def _duplicate(self, id: str) -> Receipt:
        locked = self.held.get(id)
        seq = locked.before.seq if locked else None
        return Receipt(id=id, status=Status.DUPLICATE, seq=seq)

    def _admit(self, new: NewJob) -> int:
        self.known.add(new.id)
        number = next(self.numbers)
        self.added[number] = new
        self._added_ids.add(new.id)
        self.states[new.id] = State.WAITING
        if new.after:
            self._add_child(lifecycle.admit(new, number, self.now))
        if self.states[new.id] is State.WAITING:
            # A job whose parent's end cancels it takes no room.
            self.depth[new.queue] += 1
        if new.key is not None:
            self.keys[new.queue, new.key] = KeyHolder(new.id, self.now + new.key_window_ms)
            if self.states[new.id] is State.WAITING:
                # A later job of the batch may replace this one or be merged into it.
                job = lifecycle.admit(new, number, self.now)
                self.held[new.id] = LockedJob(job, job, noted=False)
        return number

    def _add_child(self, child: Job) -> None:
        """Find the parents that a new job waits for; some may have already ended."""
        waits_for: list[str] = []
        for parent in child.after:
            state = self.states[parent]
            parting = lifecycle.after_parent(child, state) if state.finished else ParentEffect.HELD
            if parting is ParentEffect.CANCELLED:
                self.children.append((child, []))
                self.orphans[child.seq] = (parent, CODES[state])
                self.states[child.id] = State.CANCELLED
                return
            if parting is ParentEffect.HELD:
                waits_for.append(parent)
        self.children.append((child, waits_for))

    def _holder(self, new: NewJob, done: str | None = None) -> str | None:
        """The id of the job that holds the key of a new one. The job `done` counts as finished."""
        if new.key is None:
            return None
        holder = self.keys.get((new.queue, new.key))
        if holder is None:
            return None
        locked = self.held.get(holder.id)
        unfinished = locked is not None and not locked.after.has_ended
        unfinished = unfinished and holder.id not in self.ended and holder.id != done
        is_added = holder.id in self._added_ids and self.states[holder.id] is State.WAITING
        is_held = lifecycle.is_key_held(
            new, until=holder.until, now=self.now, unfinished=unfinished or is_added
        )
        return holder.id if is_held else None

    def _meet(self, holder: str, new: NewJob, queue: Queue) -> None:
        """Replace the waiting holder of a key by a new job, or merge it, as the policy says."""
        locked = self.held.get(holder)
        change = lifecycle.apply_key_policy(locked.after, new, queue, self.now) if locked else None
        if locked is not None and change is not None:
            self.held[holder] = write.with_change(locked, change, self.numbers)
