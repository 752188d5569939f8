"""Jobs on their way into the database: added, written back after a change, and their timelines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.core import checks
from holdfast.core.lifecycle import Change
from holdfast.core.model import Event, Job, NewJob
from holdfast.engines.postgres.queues import Lines
from holdfast.engines.postgres.rows import ALONE, CODES, columns, encode, extra_of
from holdfast.engines.postgres.steps import Again, Ask, Steps, Store, only, portions

_PUT = """
SELECT $schema.put($1::int, $2::bigint, $3::int[], $4::int[], $5::bigint[], $6::text[],
    $7::text[], $8::bytea[], $9::smallint[], $10::bigint[], $11::bigint[], $12::text[],
    $13::text[], $14::text[], $15::bigint[], $16::bytea[])
"""
_REWRITE = """
SELECT $schema.rewrite($1::int, $2::bigint[], $3::int[], $4::int[], $5::smallint[],
    $6::smallint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::int[], $11::int[], $12::int[],
    $13::int[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::boolean[],
    $19::boolean[], $20::text[], $21::text[], $22::text[], $23::text[], $24::text[],
    $25::bytea[], $26::bytea[], $27::bytea[])
"""
_DRAW = """
SELECT $schema.now_ms($1::bigint),
       ARRAY(SELECT nextval('$schema.numbers') FROM generate_series(1, $2::int))
"""
_WIDTH = 26
_EVENTS = """
INSERT INTO $schema.events (job, body) SELECT * FROM unnest($1::bigint[], $2::bytea[])
"""
_FORGET = """
UPDATE $schema.notes SET progress = NULL, checkpoint = NULL WHERE job = ANY ($1::bigint[])
"""


class Kept(NamedTuple):
    """A job that may change: as it was read, as it is to be, and what goes with it."""

    before: Job
    after: Job
    noted: bool
    place: int | None = None
    events: tuple[Event, ...] = ()
    forgets: bool = False


def changed(kept: Kept, change: Change, numbers: Iterator[int]) -> Kept:
    """One more change to a job that is not yet written back; at the tail it has a new place."""
    event = () if change.event is None else (checks.clean_event(change.event),)
    return kept._replace(
        after=change.job,
        place=next(numbers) if change.tail else kept.place,
        events=kept.events + event,
        forgets=kept.forgets or change.forgets,
    )


def draw(store: Store, count: int) -> Steps[tuple[int, Iterator[int]]]:
    """The instant, and numbers for arrivals and places: they decide the order within a batch."""
    ((now, numbers),) = yield Ask(_DRAW, (store.given_ms, count))
    return now, iter(numbers)


def job_columns(jobs: Sequence[NewJob]) -> tuple[list[Any], ...]:
    """Ids, tasks, payloads and so on; a column of nothing but defaults is empty, which is cheaper
    to send and means the same."""
    return (
        [job.id for job in jobs],
        [job.task for job in jobs],
        [job.payload for job in jobs],
        _unless_plain([-job.priority for job in jobs], 0),
        _unless_plain([job.delay_ms for job in jobs], 0),
        _unless_plain([job.expires_ms for job in jobs], None),
        _unless_plain([job.key for job in jobs], None),
        _unless_plain([job.tenant for job in jobs], None),
        _unless_plain([job.group for job in jobs], None),
        _unless_plain([job.overrides.lease_ms for job in jobs], None),
        _unless_plain([extra_of(job) for job in jobs], None),
    )


def _unless_plain(column: list[Any], plain: object) -> list[Any]:
    return [] if column.count(plain) == len(column) else column


def put(store: Store, now: int, added: dict[int, NewJob], lines: Lines) -> Steps[None]:
    """Add jobs, by their numbers, whose admission is decided."""
    for portion in portions(added.items(), lambda entry: len(entry[1].payload)):
        jobs = [job for _, job in portion]
        names = sorted({job.queue for job in jobs})
        refs = {name: position for position, name in enumerate(names, 1)}
        values = (
            store.ns, now, [lines.number(name) for name in names],
            [refs[job.queue] for job in jobs] if len(names) > 1 else [],
            [number for number, _ in portion], *job_columns(jobs),
        )  # fmt: skip
        yield Ask(_PUT, values)


def rewrite(store: Store, kept: Iterable[Kept], lines: Lines) -> Steps[None]:
    """Write changed jobs back, each on the version that was read, and their timeline rows."""
    written = [one for one in kept if one.after is not one.before]
    for portion in portions(written, _bytes_written):
        values = columns((_row(one, lines) for one in portion), _WIDTH)
        count = only((yield Ask(_REWRITE, (store.ns, *values))))
        if count != len(portion):
            raise Again
    forgetful = [one.before.seq for one in written if one.forgets and one.noted]
    if forgetful:
        yield Ask(_FORGET, (forgetful,))
    told = [(one.before.seq, encode(event)) for one in written for event in one.events]
    for events in portions(told, lambda row: len(row[1])):
        yield Ask(_EVENTS, columns(events, 2))


def _bytes_written(kept: Kept) -> int:
    payload = b"" if kept.after.payload is kept.before.payload else kept.after.payload
    return len(payload) + len(kept.after.result or b"")


def _row(kept: Kept, lines: Lines) -> tuple[Any, ...]:
    before, job = kept.before, kept.after
    return (
        before.seq, before.version, lines.number(job.queue), CODES[job.state], -job.priority,
        job.due_at, kept.place, job.expires_at, job.version, job.attempt, job.crashes,
        job.releases | ALONE * job.alone, job.token, job.deadline_at, job.finished_at,
        job.overrides.lease_ms, job.cancel_requested, kept.noted, job.task, job.tenant, job.group,
        job.origin, job.reason and str(job.reason), extra_of(job),
        None if job.payload is before.payload else job.payload, job.result,
    )  # fmt: skip
