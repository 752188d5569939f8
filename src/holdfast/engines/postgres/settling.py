"""How leases end. Plain completions are one statement; all else is read under row locks, decided
by `lifecycle` and written back, in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core import admission, checks, lifecycle, limits
from holdfast.core.model import NewJob, Note
from holdfast.core.verdict import Complete, Forward, Outcome, Settlement
from holdfast.engines.postgres import enqueuing, write
from holdfast.engines.postgres.enqueuing import Picture
from holdfast.engines.postgres.leasing import can_exist
from holdfast.engines.postgres.queues import Lines, read_lines
from holdfast.engines.postgres.rows import brief_job, columns
from holdfast.engines.postgres.steps import STATEMENT_BYTES_MAX, Ask, Steps, Store, only, portions
from holdfast.engines.postgres.write import Kept
from holdfast.errors import UsageError

_COMPLETE = """
SELECT $schema.complete($1::int, $2::bigint, $3::text[], $4::bigint[], $5::bytea[])
"""
_READ = "SELECT * FROM $schema.hold_ids($1::int, $2::text[], false)"
_NOTE = "SELECT $schema.note($1::bigint[], $2::float8[], $3::bytea[], $4::bytea[])"


def settle(store: Store, settlements: Sequence[Settlement]) -> Steps[list[Outcome]]:
    ids = {settlement.lease.id for settlement in settlements}
    if (
        len(ids) == len(settlements)
        and all(map(_is_plain, settlements))
        and sum(map(_result_bytes, settlements)) <= STATEMENT_BYTES_MAX
    ):
        return (yield from _complete(store, settlements))
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


def _complete(store: Store, settlements: Sequence[Settlement]) -> Steps[list[Outcome]]:
    # Row locks in one order for everybody.
    ordered = sorted(settlements, key=lambda one: (one.lease.job.seq, one.lease.id))
    results = [verdict.result for one in ordered if isinstance(verdict := one.verdict, Complete)]
    values = (
        store.ns, store.given_ms,
        [settlement.lease.id for settlement in ordered],
        [settlement.lease.token for settlement in ordered],
        results if any(result is not None for result in results) else [],
    )  # fmt: skip
    done = only((yield Ask(_COMPLETE, values, alone=True)))
    if done is None:
        return [Outcome.SETTLED] * len(settlements)
    # As `lifecycle.judge` says of a completion: settled if the job is done under this token.
    return [Outcome.SETTLED if one.lease.id in done else Outcome.LOST for one in settlements]


def _settle_carefully(store: Store, settlements: Sequence[Settlement]) -> Steps[list[Outcome]]:
    sound = [settlement for settlement in settlements if can_exist(settlement.lease)]
    follow_ups = [new for one in sound if _is_within_bounds(one) for new in _then(one)]
    lines = yield from read_lines(store, {new.queue for new in follow_ups} | _targets(sound))
    picture = yield from enqueuing.look(store, follow_ups, lines, extra=len(settlements))
    kept = yield from read_kept(store, [one.lease.id for one in sound], lines)
    outcomes, notes = [], dict[int, Note]()
    for settlement in settlements:
        current = kept.get(settlement.lease.id) if can_exist(settlement.lease) else None
        outcome = _judge(current, settlement, picture)
        outcomes.append(outcome or Outcome.SETTLED)
        if outcome is None and current is not None:
            kept[settlement.lease.id] = _apply(current, settlement, picture)
            _take_note(notes, current.before.seq, settlement.note)
    yield from write.rewrite(store, kept.values(), lines)
    rows = ((seq, note.progress, note.checkpoint, note.output) for seq, note in notes.items())
    for portion in portions(rows, lambda row: len(row[2] or b"") + len(row[3] or b"")):
        yield Ask(_NOTE, columns(portion, 4))
    yield from enqueuing.keep(store, picture)
    return outcomes


def read_kept(store: Store, ids: Sequence[str], lines: Lines) -> Steps[dict[str, Kept]]:
    """Lock and read jobs, and add their queues to `lines`."""
    rows = yield Ask(_READ, (store.ns, list(ids)))
    jobs = [(brief_job(row), row[29]) for row in rows]
    unread = {job.queue for job, _ in jobs if job.queue not in lines}
    if unread:
        lines.add((yield from read_lines(store, unread)))
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
    return None if admission.is_welcome(settlement, picture.lines) else Outcome.REFUSED


def _apply(kept: Kept, settlement: Settlement, picture: Picture) -> Kept:
    job = kept.after
    change = lifecycle.apply(job, settlement.verdict, picture.lines.policy(job), picture.now)
    after = write.changed(kept, change, picture.numbers)
    if change.job.state.finished:
        picture.ended.add(job.id)
    for new in _then(settlement):
        picture.follow_up(new)
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
