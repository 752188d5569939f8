"""Settles and renews leases. Plain completions and most renewals are one statement; for any other
verdict, `lifecycle` decides on job rows read under locks, and the result is written in one
transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

from holdfast.core import bounds, checks, lifecycle
from holdfast.core.model import Job, Lease, NewJob, Note, Renewal, State
from holdfast.core.verdict import Complete, Forward, Outcome, Settlement
from holdfast.engines.postgres import write
from holdfast.engines.postgres.enqueue import EnqueuePlan, make_plan, write_plan
from holdfast.engines.postgres.lease import can_exist
from holdfast.engines.postgres.queues import read_queues
from holdfast.engines.postgres.rows import columns, leased_job
from holdfast.engines.postgres.script import (
    STATEMENT_BYTES_MAX,
    CallContext,
    Restart,
    Script,
    Statement,
    chunks,
    only_value,
)
from holdfast.engines.postgres.write import ERASE, LockedJob, lock_flow
from holdfast.errors import UsageError

_COMPLETE = """
SELECT $schema.complete_jobs($1::int, $2::bigint, $3::bigint[], $4::bigint[], $5::bytea[])
"""
_COMPLETE_FLOW = """
SELECT done_, endings_, had_flow
FROM $schema.complete_flow_jobs($1::int, $2::bigint, $6::text[], $3::bigint[], $4::bigint[],
                                $5::bytea[])
"""
_COMPLETE_LIGHT = """
SELECT done_, endings_, had_flow, is_left
FROM $schema.complete_light_jobs(
    $1::int, $2::bigint, $6::text[], $7::boolean, $3::bigint[], $4::bigint[], $5::bytea[])
"""
_NOTE = "SELECT $schema.note($1::bigint[], $2::float8[], $3::bytea[], $4::bytea[])"
_RENEW = """
SELECT * FROM $schema.renew_leases($1::int, $2::bigint, $3::text[], $4::bigint[], $5::bigint[],
                            $6::float8[], $7::bytea[], $8::bytea[])
"""
_TOKEN_COLUMN = 17
"""The position of `token` in a row of the SQL type `held`."""

_Numbered: TypeAlias = list[tuple[int, Renewal]]


def settle(context: CallContext, settlements: Sequence[Settlement]) -> Script[list[Outcome]]:
    """Apply verdicts to leases that are still valid; returns an outcome for each, in the order
    given.
    """
    if not _are_plain(settlements):
        return (yield from _settle_carefully(context, settlements))
    done = yield from _complete(context, sorted(settlements, key=_lock_order))
    if done is None:
        return [Outcome.SETTLED] * len(settlements)
    # As in `lifecycle.judge`: a completion is settled if the job is done under this token.
    return [
        Outcome.SETTLED if settlement.lease.job.seq in done else Outcome.LOST
        for settlement in settlements
    ]


_lock_order = attrgetter("lease.job.seq")
"""Job rows are locked in the order of seq."""


def _are_plain(settlements: Sequence[Settlement]) -> bool:
    """Whether all complete different jobs, without follow-up jobs and notes, and fit into
    one statement. Not those of dead letters, which are deleted."""
    seqs = set()
    total = 0
    for settlement in settlements:
        lease, verdict = settlement.lease, settlement.verdict
        if type(verdict) is not Complete or verdict.then or settlement.note is not None:
            return False
        if lease.job.reason is not None or not can_exist(lease):
            return False
        if verdict.result is not None:
            if not _is_within_bounds(settlement):
                return False
            total += len(verdict.result)
        seqs.add(lease.job.seq)
    return len(seqs) == len(settlements) and total <= STATEMENT_BYTES_MAX


def _complete(
    context: CallContext, ordered: Sequence[Settlement]
) -> Script[Collection[int] | None]:
    """Complete the leases and return the numbers of the jobs that are done, None if all are. Plain
    jobs go first, because the others need the flow locks."""
    effects = context.effects
    if effects.is_final:
        return (yield from _complete_at_once(context, ordered))
    if effects.is_cautious:
        names = None if effects.locks else sorted(_sources(ordered))
        return (yield from _complete_locked(context, ordered, names))
    effects.is_cautious = True
    flowing = effects.laned | effects.flowing
    left = [settlement for settlement in ordered if _has_flow(flowing, settlement)]
    plain = [one for one in ordered if not _has_flow(flowing, one)] if left else ordered
    found: Sequence[int | None] | None = None
    if plain:
        values = _complete_values(context, plain)
        found = only_value((yield Statement(_COMPLETE, values, alone=True)))
        context.effects.is_in_part |= found is None or any(seq is not None for seq in found)
        if found is None and not left:
            return None
    done = {one.lease.job.seq for one in plain}
    if found is not None:
        done.intersection_update(seq for seq in found if seq is not None)
        if found and found[0] is None:
            # Some jobs turned out to have flow control.
            left += [settlement for settlement in plain if settlement.lease.job.seq not in done]
            left.sort(key=_lock_order)
    if left:
        done.update((yield from _complete_flow(context, left)))
    return done


def _complete_at_once(
    context: CallContext, ordered: Sequence[Settlement]
) -> Script[Collection[int]]:
    """Complete in a caller's transaction, where no statement is committed separately: the flow
    locks must be taken before the first row, and then all jobs are completed together.
    """
    ids = [settlement.lease.id for settlement in ordered]
    queues = yield from read_queues(context, _sources(ordered))
    jobs = [settlement.lease.job for settlement in ordered]
    yield from lock_flow(context, jobs, queues, ids)
    return (yield from _complete_locked(context, ordered, sorted(queues.names)))


def _complete_flow(context: CallContext, left: Sequence[Settlement]) -> Script[Collection[int]]:
    """Complete jobs with flow control. Most need no flow lock: their slots are freed later, by the
    next call that holds it."""
    # All in one statement or the other: children are notified in the order of arrival.
    light, heavy = (left, []) if all(_is_light(context, one) for one in left) else ([], left)
    done: set[int] = set()
    if light:
        is_grouped = any(settlement.lease.job.group is not None for settlement in light)
        values = (*_complete_values(context, light), sorted(_sources(light)), is_grouped)
        rows = yield Statement(_COMPLETE_LIGHT, values, alone=True)
        ((found, endings, had_flow, is_left),) = rows
        done.update((one.lease.job.seq for one in light) if found is None else found)
        context.effects.is_in_part |= bool(done)
        context.effects.committed += endings or ()
        _remember_flow(context, light, had_flow=had_flow)
        if is_left:
            heavy = [settlement for settlement in left if settlement.lease.job.seq not in done]
    if heavy:
        names = None if context.effects.locks else sorted(_sources(heavy))
        done.update((yield from _complete_locked(context, heavy, names)))
    return done


def _has_flow(flowing: Collection[str], settlement: Settlement) -> bool:
    """Whether the job seems to have flow control, as jobs of these queues do; only the database
    knows."""
    job = settlement.lease.job
    return job.group is not None or job.queue in flowing or bool(job.after)


def _is_light(context: CallContext, settlement: Settlement) -> bool:
    """Whether the job seems not to be both in a group and in a lane."""
    job = settlement.lease.job
    return job.group is None or job.queue not in context.effects.laned


def _complete_locked(
    context: CallContext, left: Sequence[Settlement], names: list[str] | None
) -> Script[Collection[int]]:
    """Take the flow locks of the queues named and complete. Without names the queues are those
    that the jobs are in."""
    rows = yield Statement(_COMPLETE_FLOW, (*_complete_values(context, left), names), alone=True)
    found, endings, had_flow = rows[0]
    if found and found[0] is None:
        # A job was moved since it was leased.
        context.effects.locks = True
        raise Restart
    context.effects.endings += endings or ()
    _remember_flow(context, left, had_flow=had_flow)
    return {settlement.lease.job.seq for settlement in left} if found is None else found


def _remember_flow(
    context: CallContext, settlements: Iterable[Settlement], *, had_flow: bool | None
) -> None:
    """Remember for later calls whether jobs of these queues have flow control."""
    names = {settlement.lease.job.queue for settlement in settlements}
    if had_flow:
        context.effects.flowing.update(names)
    elif had_flow is not None:
        context.effects.flowing.difference_update(names)


def _complete_values(context: CallContext, settlements: Sequence[Settlement]) -> tuple[Any, ...]:
    verdicts = [settlement.verdict for settlement in settlements]
    results = [verdict.result for verdict in verdicts if type(verdict) is Complete]
    return (
        context.ns, context.given_ms,
        [settlement.lease.job.seq for settlement in settlements],
        [settlement.lease.token for settlement in settlements],
        results if any(result is not None for result in results) else [],
    )  # fmt: skip


def _settle_carefully(
    context: CallContext, settlements: Sequence[Settlement]
) -> Script[list[Outcome]]:
    possible = [settlement for settlement in settlements if can_exist(settlement.lease)]
    follow_ups = [new for one in possible if _is_within_bounds(one) for new in _follow_ups(one)]
    names = {new.queue for new in follow_ups} | _targets(possible) | _sources(possible)
    queues = yield from read_queues(context, names | context.effects.queues)
    involved: list[NewJob | Job] = [*follow_ups, *(one.lease.job for one in possible)]
    ids = [settlement.lease.id for settlement in possible]
    locked = yield from lock_flow(context, involved, queues, ids)
    plan = yield from make_plan(context, follow_ups, queues, locked=locked, settled=ids)
    # In the order of arrival, in which children are notified.
    settled = set(ids)
    jobs = {id_: job for id_, job in plan.held.items() if id_ in settled}
    outcomes, notes, handled = [], dict[int, Note](), list[int]()
    for settlement in settlements:
        job = jobs.get(settlement.lease.id) if can_exist(settlement.lease) else None
        outcome = _judge(job, settlement, plan)
        outcomes.append(outcome or Outcome.SETTLED)
        if outcome is None and job is not None:
            after = _apply(job, settlement, plan)
            if after is None:
                handled.append(jobs.pop(settlement.lease.id).before.seq)
                continue
            jobs[settlement.lease.id] = after
            _add_note(notes, job.before.seq, settlement.note)
    # New jobs first: they may wait for a job that ends here.
    yield from write_plan(context, plan, locked=locked)
    yield from write.rewrite(context, jobs.values(), queues, now=plan.now, locked=locked)
    if handled:
        erased = yield Statement(ERASE, (context.ns, plan.now, handled))
        context.effects.endings += only_value(erased)
    rows = ((seq, note.progress, note.checkpoint, note.output) for seq, note in notes.items())
    for chunk in chunks(rows, lambda row: len(row[2] or b"") + len(row[3] or b"")):
        yield Statement(_NOTE, columns(chunk, 4))
    return outcomes


def _sources(settlements: Iterable[Settlement]) -> set[str]:
    """The queues that the jobs were in when they were leased."""
    names = {settlement.lease.job.queue for settlement in settlements}
    return {name for name in names if bounds.QUEUE_NAME.match(name)}


def _targets(settlements: Iterable[Settlement]) -> set[str]:
    """The queues that jobs are forwarded to."""
    return {
        verdict.queue
        for settlement in settlements
        if isinstance(verdict := settlement.verdict, Forward)
        and bounds.QUEUE_NAME.match(verdict.queue)
    }


def _follow_ups(settlement: Settlement) -> tuple[NewJob, ...]:
    verdict = settlement.verdict
    return verdict.then if isinstance(verdict, Complete) else ()


def _is_within_bounds(settlement: Settlement) -> bool:
    try:
        checks.check_settlement(settlement)
    except UsageError:
        return False
    return True


def _judge(locked: LockedJob | None, settlement: Settlement, plan: EnqueuePlan) -> Outcome | None:
    """The outcome of a settlement that changes nothing; None if the verdict is to be applied."""
    lease, verdict = settlement.lease, settlement.verdict
    job = locked.after if locked else None
    deadline_at = job.deadline_at if job else None
    # The instant was read before the row was locked, so a renewal in between is respected.
    lapsed = deadline_at is not None and deadline_at <= plan.now
    outcome = lifecycle.judge(job, lease.token, verdict, lapsed=lapsed)
    if outcome is not None:
        return outcome
    welcome = checks.is_acceptable(settlement, plan.queues)
    if not welcome or not plan.may_follow(_follow_ups(settlement), lease.id):
        return Outcome.REFUSED
    return None


def _apply(locked: LockedJob, settlement: Settlement, plan: EnqueuePlan) -> LockedJob | None:
    """The job after the verdict; None if it is to be deleted."""
    job = locked.after
    change = lifecycle.apply(job, settlement.verdict, plan.queues.policy(job), plan.now)
    if change is None:
        plan.ended.add(job.id)
        plan.states[job.id] = State.DEAD
        plan.follow_up(_follow_ups(settlement))
        return None
    after = write.with_change(locked, change, plan.numbers)
    if change.job.state.finished:
        plan.ended.add(job.id)
    plan.states[job.id] = change.job.state
    plan.follow_up(_follow_ups(settlement))
    return after._replace(noted=locked.noted or settlement.note is not None)


def _add_note(notes: dict[int, Note], seq: int, note: Note | None) -> None:
    """Add the note of a settlement to those of its batch; fields of a later note win."""
    if note is None:
        return
    earlier = notes.get(seq, Note())
    notes[seq] = Note(
        progress=earlier.progress if note.progress is None else note.progress,
        checkpoint=earlier.checkpoint if note.checkpoint is None else note.checkpoint,
        output=earlier.output if note.output is None else checks.clip_output(note.output),
    )


def renew(context: CallContext, renewals: Sequence[Renewal]) -> Script[list[Lease | None]]:
    """Extend the deadlines of leases that are still valid and store their notes; None for each lost
    lease.

    One statement, or one transaction if a job is named twice or the notes are large.
    """
    answers: list[Lease | None] = [None] * len(renewals)
    left = [entry for entry in enumerate(renewals) if can_exist(entry[1].lease)]
    # Job rows are locked in the order of seq.
    left.sort(key=lambda entry: (entry[1].lease.job.seq, entry[1].lease.id))
    is_single = True
    while left:
        first, later = _one_statement(left)
        is_single = is_single and not later
        rows = yield Statement(_RENEW, _renew_values(context, first), alone=is_single)
        by_id = {row[0]: row for row in rows}
        for position, renewal in first:
            row = by_id.get(renewal.lease.id)
            if row is not None:
                lease_ms = _lease_ms(renewal)
                answers[position] = Lease(
                    job=leased_job(row), token=row[_TOKEN_COLUMN], lease_ms=lease_ms
                )
        left = later
    return answers


def _one_statement(numbered: _Numbered) -> tuple[_Numbered, _Numbered]:
    """The first renewal of each job, as far as their notes fit into one statement; and the rest."""
    ids: set[str] = set()
    total = 0
    first: _Numbered = []
    later: _Numbered = []
    for entry in numbered:
        _, renewal = entry
        total += _note_bytes(renewal)
        is_too_large = bool(first) and total > STATEMENT_BYTES_MAX
        (later if renewal.lease.id in ids or is_too_large else first).append(entry)
        ids.add(renewal.lease.id)
    return first, later


def _note_bytes(renewal: Renewal) -> int:
    note = renewal.note
    return 0 if note is None else len(note.checkpoint or b"") + len(note.output or b"")


def _renew_values(context: CallContext, numbered: _Numbered) -> tuple[Any, ...]:
    renewals = [renewal for _, renewal in numbered]
    notes = [renewal.note for renewal in renewals]
    has_notes = any(note is not None for note in notes)
    return (
        context.ns, context.given_ms,
        [renewal.lease.id for renewal in renewals],
        [renewal.lease.token for renewal in renewals],
        [_lease_ms(renewal) for renewal in renewals],
        [note and note.progress for note in notes] if has_notes else [],
        [note and note.checkpoint for note in notes] if has_notes else [],
        [
            None if note is None or note.output is None else checks.clip_output(note.output)
            for note in notes
        ] if has_notes else [],
    )  # fmt: skip


def _lease_ms(renewal: Renewal) -> int:
    return renewal.lease.lease_ms if renewal.lease_ms is None else renewal.lease_ms
