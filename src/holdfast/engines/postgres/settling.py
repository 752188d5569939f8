"""How leases end. Plain completions are one statement; all else is read under row locks, decided
by `lifecycle` and written back, in one transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from holdfast.core import admission, checks, lifecycle, limits
from holdfast.core.model import Job, NewJob, Note
from holdfast.core.verdict import Complete, Forward, Outcome, Settlement
from holdfast.engines.postgres import enqueuing, write
from holdfast.engines.postgres.leasing import can_exist
from holdfast.engines.postgres.picture import Picture
from holdfast.engines.postgres.queues import Lines, read_lines
from holdfast.engines.postgres.rows import columns, kept_job
from holdfast.engines.postgres.steps import (
    STATEMENT_BYTES_MAX,
    Again,
    Ask,
    Steps,
    Store,
    only,
    portions,
)
from holdfast.engines.postgres.write import Kept
from holdfast.errors import UsageError

_COMPLETE = """
SELECT $schema.complete($1::int, $2::bigint, $3::text[], $4::bigint[], $5::bytea[])
"""
_COMPLETE_FLOW = """
SELECT done, endings_, had_flow
FROM $schema.complete_flow($1::int, $2::bigint, $6::text[], $3::text[], $4::bigint[], $5::bytea[])
"""
_COMPLETE_LIGHT = """
SELECT done, endings_, had_flow, is_left
FROM $schema.complete_light(
    $1::int, $2::bigint, $6::text[], $7::boolean, $3::text[], $4::bigint[], $5::bytea[])
"""
_READ = "SELECT * FROM $schema.hold_ids($1::int, $2::text[], $3::boolean)"
_NOTE = "SELECT $schema.note($1::bigint[], $2::float8[], $3::bytea[], $4::bytea[])"


def settle(store: Store, settlements: Sequence[Settlement]) -> Steps[list[Outcome]]:
    ids = {settlement.lease.id for settlement in settlements}
    if (
        len(ids) == len(settlements)
        and all(map(_is_plain, settlements))
        and sum(map(_result_bytes, settlements)) <= STATEMENT_BYTES_MAX
    ):
        # Row locks in one order for everybody.
        ordered = sorted(settlements, key=lambda one: (one.lease.job.seq, one.lease.id))
        done = yield from _complete(store, ordered)
        # As `lifecycle.judge` says of a completion: settled if the job is done under this token.
        return [Outcome.SETTLED if one.lease.id in done else Outcome.LOST for one in settlements]
    return (yield from _settle_carefully(store, settlements))


def _is_plain(settlement: Settlement) -> bool:
    verdict = settlement.verdict
    return (
        isinstance(verdict, Complete)
        and not verdict.then
        and settlement.note is None
        and can_exist(settlement.lease)
        and (verdict.result is None or _is_within_bounds(settlement))
    )


def _result_bytes(settlement: Settlement) -> int:
    verdict = settlement.verdict
    return len(verdict.result or b"") if isinstance(verdict, Complete) else 0


def _complete(store: Store, ordered: Sequence[Settlement]) -> Steps[Collection[str]]:
    """The ids of those that are done. Plain jobs go first: the others need their flow held."""
    plain = [one for one in ordered if not _has_flow(store, one)]
    left = [one for one in ordered if _has_flow(store, one)]
    done = {one.lease.id for one in plain}
    if plain:
        found = only((yield Ask(_COMPLETE, _completed(store, plain), alone=True)))
        if found is not None:
            done &= set(found)
        store.duties.is_in_part |= bool(done)
        if found and found[0] is None:
            left = sorted(
                [*left, *(one for one in plain if one.lease.id not in done)],
                key=lambda one: (one.lease.job.seq, one.lease.id),
            )
    if left:
        done.update((yield from _complete_flow(store, left)))
    return done


def _complete_flow(store: Store, left: Sequence[Settlement]) -> Steps[Collection[str]]:
    """Most ends need nobody else held. In a caller's transaction they would be held before."""
    # All in one statement or the other: children hear of the ends in the order of arrival.
    light, heavy = (left, []) if all(_is_light(store, one) for one in left) else ([], left)
    done: set[str] = set()
    if light:
        is_grouped = any(one.lease.job.group is not None for one in light)
        values = (*_completed(store, light), _names(light), is_grouped)
        ((found, endings, had_flow, is_left),) = yield Ask(_COMPLETE_LIGHT, values, alone=True)
        done.update((one.lease.id for one in light) if found is None else found)
        store.duties.is_in_part |= bool(done)
        store.duties.committed += endings or ()
        _learn(store, light, had_flow=had_flow)
        if is_left:
            heavy = [one for one in left if one.lease.id not in done]
    if heavy:
        done.update((yield from _complete_heavy(store, heavy)))
    return done


def _is_light(store: Store, settlement: Settlement) -> bool:
    """As far as can be seen from here, too."""
    job = settlement.lease.job
    is_both = job.group is not None and job.queue in store.duties.laned
    return not (is_both or store.duties.is_final)


def _complete_heavy(store: Store, left: Sequence[Settlement]) -> Steps[Collection[str]]:
    names = None if store.duties.locks else _names(left)
    rows = yield Ask(_COMPLETE_FLOW, (*_completed(store, left), names), alone=True)
    found, endings, had_flow = rows[0]
    if found and found[0] is None:
        # Not all of them are where they were leased: it has to be looked up.
        store.duties.locks = True
        raise Again
    store.duties.endings += endings or ()
    _learn(store, left, had_flow=had_flow)
    return {one.lease.id for one in left} if found is None else found


def _names(settlements: Iterable[Settlement]) -> list[str]:
    """Where the jobs were when they were leased."""
    return sorted(_sources(settlements))


def _learn(store: Store, settlements: Iterable[Settlement], *, had_flow: bool | None) -> None:
    """What to expect of the next ones."""
    names = {one.lease.job.queue for one in settlements}
    if had_flow:
        store.duties.flowing.update(names)
    elif had_flow is not None:
        store.duties.flowing.difference_update(names)


def _has_flow(store: Store, settlement: Settlement) -> bool:
    """As far as can be seen from here; the database knows better."""
    job = settlement.lease.job
    hints = store.duties
    known = job.queue in hints.laned or job.queue in hints.flowing
    return known or job.group is not None or bool(job.after)


def _completed(store: Store, settlements: Sequence[Settlement]) -> tuple[Any, ...]:
    verdicts = [one.verdict for one in settlements]
    results = [verdict.result for verdict in verdicts if isinstance(verdict, Complete)]
    return (
        store.ns, store.given_ms,
        [settlement.lease.id for settlement in settlements],
        [settlement.lease.token for settlement in settlements],
        results if any(result is not None for result in results) else [],
    )  # fmt: skip


def _settle_carefully(store: Store, settlements: Sequence[Settlement]) -> Steps[list[Outcome]]:
    sound = [settlement for settlement in settlements if can_exist(settlement.lease)]
    follow_ups = [new for one in sound if _is_within_bounds(one) for new in _then(one)]
    names = {new.queue for new in follow_ups} | _targets(sound) | _sources(sound)
    lines = yield from read_lines(store, names)
    involved: list[NewJob | Job] = [*follow_ups, *(one.lease.job for one in sound)]
    ids = [one.lease.id for one in sound]
    locked = yield from enqueuing.lock_flow(store, involved, lines, ids)
    picture = yield from enqueuing.look(store, follow_ups, lines, extra=len(settlements))
    kept = yield from _read_kept(store, ids, lines, locked=locked)
    outcomes, notes = [], dict[int, Note]()
    for settlement in settlements:
        current = kept.get(settlement.lease.id) if can_exist(settlement.lease) else None
        outcome = _judge(current, settlement, picture)
        outcomes.append(outcome or Outcome.SETTLED)
        if outcome is None and current is not None:
            kept[settlement.lease.id] = _apply(current, settlement, picture)
            _take_note(notes, current.before.seq, settlement.note)
    # The new ones first: a job that ends here may be one that they wait for.
    yield from enqueuing.keep(store, picture, locked=locked)
    yield from write.rewrite(store, kept.values(), lines, now=picture.now, locked=locked)
    rows = ((seq, note.progress, note.checkpoint, note.output) for seq, note in notes.items())
    for portion in portions(rows, lambda row: len(row[2] or b"") + len(row[3] or b"")):
        yield Ask(_NOTE, columns(portion, 4))
    return outcomes


def _sources(settlements: Iterable[Settlement]) -> set[str]:
    """Where the jobs were when they were leased."""
    names = {one.lease.job.queue for one in settlements}
    return {name for name in names if limits.QUEUE_NAME.match(name)}


def _read_kept(
    store: Store, ids: Sequence[str], lines: Lines, *, locked: bool
) -> Steps[dict[str, Kept]]:
    """Lock and read jobs, and add their queues to `lines`."""
    rows = yield Ask(_READ, (store.ns, list(ids), lines.reads_payload))
    jobs = [(kept_job(row), row[29]) for row in rows]
    unread = {job.queue for job, _ in jobs if job.queue not in lines}
    if unread:
        # One of them went to another queue, which has to be locked before its jobs are.
        if locked or not store.duties.is_final:
            store.duties.locks = True
            raise Again
        further = yield from read_lines(store, unread)
        if further.laned:
            raise Again
        lines.add(further)
    # A queue that was dropped meanwhile took its jobs with it.
    return {job.id: Kept(job, job, noted) for job, noted in jobs if job.queue in lines}


def _targets(settlements: Iterable[Settlement]) -> set[str]:
    return {
        verdict.queue
        for one in settlements
        if isinstance(verdict := one.verdict, Forward) and limits.QUEUE_NAME.match(verdict.queue)
    }


def _then(settlement: Settlement) -> tuple[NewJob, ...]:
    verdict = settlement.verdict
    return verdict.then if isinstance(verdict, Complete) else ()


def _is_within_bounds(settlement: Settlement) -> bool:
    try:
        checks.check_settlement(settlement)
    except UsageError:
        return False
    return True


def _judge(kept: Kept | None, settlement: Settlement, picture: Picture) -> Outcome | None:
    lease, verdict = settlement.lease, settlement.verdict
    job = kept.after if kept else None
    deadline_at = job.deadline_at if job else None
    # The instant was read before the row was locked: a renewal since then is never overlooked.
    lapsed = deadline_at is not None and deadline_at <= picture.now
    answer = lifecycle.judge(job, lease.token, verdict, lapsed=lapsed)
    if answer is not None:
        return answer
    welcome = admission.is_welcome(settlement, picture.lines)
    if not welcome or not picture.may_follow(_then(settlement), lease.id):
        return Outcome.REFUSED
    return None


def _apply(kept: Kept, settlement: Settlement, picture: Picture) -> Kept:
    job = kept.after
    change = lifecycle.apply(job, settlement.verdict, picture.lines.policy(job), picture.now)
    after = write.changed(kept, change, picture.numbers)
    if change.job.state.finished:
        picture.ended.add(job.id)
    picture.states[job.id] = change.job.state
    picture.follow_up(_then(settlement))
    return after._replace(noted=kept.noted or settlement.note is not None)


def _take_note(notes: dict[int, Note], seq: int, note: Note | None) -> None:
    """A job settled twice in one batch may leave two notes: the later one goes on top."""
    if note is None:
        return
    earlier = notes.get(seq, Note())
    notes[seq] = Note(
        progress=earlier.progress if note.progress is None else note.progress,
        checkpoint=earlier.checkpoint if note.checkpoint is None else note.checkpoint,
        output=earlier.output if note.output is None else checks.clip_output(note.output),
    )
