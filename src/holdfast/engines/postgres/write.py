"""Jobs on their way into the database: added, written back after a change, and their timelines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.core import checks
from holdfast.core.lifecycle import Change
from holdfast.core.model import Event, Job, NewJob
from holdfast.engines.postgres import lanes
from holdfast.engines.postgres.lanes import Spot
from holdfast.engines.postgres.queues import Lines
from holdfast.engines.postgres.rows import ALONE, CODES, columns, encode, extra_of
from holdfast.engines.postgres.steps import Again, Ask, Steps, Store, only, portions

_PUT = """
SELECT $schema.put($1::int, $2::bigint, $3::int[], $4::int[], $5::bigint[], $6::text[],
    $7::text[], $8::bytea[], $9::smallint[], $10::bigint[], $11::bigint[], $12::text[],
    $13::text[], $14::text[], $15::bigint[], $16::bytea[], $17::int[], $18::smallint[],
    $19::int[])
"""
_REWRITE = """
SELECT $schema.rewrite($1::int, $2::bigint, $3::boolean, $4::bigint[], $5::int[], $6::int[],
    $7::smallint[], $8::smallint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::int[],
    $13::int[], $14::int[], $15::int[], $16::bigint[], $17::bigint[], $18::bigint[],
    $19::bigint[], $20::boolean[], $21::boolean[], $22::text[], $23::text[], $24::text[],
    $25::text[], $26::text[], $27::bytea[], $28::bytea[], $29::bytea[], $30::text[], $31::int[],
    $32::text[])
"""
_DRAW = """
SELECT $schema.now_ms($1::bigint),
       ARRAY(SELECT nextval('$schema.numbers') FROM generate_series(1, $2::int))
"""
_WIDTH = 29
_EVENTS = """
INSERT INTO $schema.events (job, body) SELECT * FROM unnest($1::bigint[], $2::bytea[])
"""
_FORGET = """
UPDATE $schema.notes SET progress = NULL, checkpoint = NULL WHERE job = ANY ($1::bigint[])
"""


HAS_LANE, HAS_GROUP, HAS_PARENTS, HAS_CHILDREN, IS_BEHIND = 1, 2, 4, 8, 16


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


def put(
    store: Store, now: int, added: dict[int, NewJob], lines: Lines, parents: dict[int, int]
) -> Steps[None]:
    """Add jobs, by their numbers, whose admission is decided. `parents` says of how many of them
    a job waits for, for those that have any."""
    spots = {number: lines.spot(job) for number, job in added.items()}
    found = yield from lanes.resolve(store, spots.values())
    for portion in portions(added.items(), lambda entry: len(entry[1].payload)):
        jobs = [job for _, job in portion]
        names = sorted({job.queue for job in jobs})
        refs = {name: position for position, name in enumerate(names, 1)}
        values = (
            store.ns, now, [lines.number(name) for name in names],
            [refs[job.queue] for job in jobs] if len(names) > 1 else [],
            [number for number, _ in portion], *job_columns(jobs),
            _unless_plain([_number(spots[number], found) for number, _ in portion], None),
            _unless_plain(
                [_flow(job, spots[number], parents.get(number, 0)) for number, job in portion], 0
            ),
            _unless_plain(
                [parents.get(number, 0) + (job.group is not None) for number, job in portion], 0
            ),
        )  # fmt: skip
        yield Ask(_PUT, values)


def _number(spot: Spot | None, found: dict[Spot, int]) -> int | None:
    return None if spot is None else found[spot]


def _flow(job: NewJob, spot: Spot | None, parents: int) -> int:
    """The bits of the column `flow`: whoever is in a group is behind until it is exposed."""
    grouped = (HAS_GROUP | IS_BEHIND) * (job.group is not None)
    return HAS_LANE * (spot is not None) | grouped | HAS_PARENTS * bool(parents)


def rewrite(
    store: Store, kept: Iterable[Kept], lines: Lines, *, now: int, locked: bool
) -> Steps[None]:
    """Write changed jobs back, each on the version that was read, and their timeline rows."""
    written = [one for one in kept if one.after is not one.before]
    spots = [lines.spot(one.after) for one in written]
    if any(spots) and not locked:
        store.duties.locks = True
        raise Again
    found = yield from lanes.resolve(store, spots)
    numbered = [(one, _number(spot, found)) for one, spot in zip(written, spots, strict=True)]
    for portion in portions(numbered, lambda entry: _bytes_written(entry[0])):
        values = columns((_row(one, lane, lines) for one, lane in portion), _WIDTH)
        endings = only((yield Ask(_REWRITE, (store.ns, now, locked, *values))))
        if endings is None:
            # It was changed, or it has a flow that nobody knew of.
            store.duties.locks = True
            raise Again
        store.duties.endings += endings
    forgetful = [one.before.seq for one in written if one.forgets and one.noted]
    if forgetful:
        yield Ask(_FORGET, (forgetful,))
    told = [(one.before.seq, encode(event)) for one in written for event in one.events]
    for events in portions(told, lambda row: len(row[1])):
        yield Ask(_EVENTS, columns(events, 2))


def _bytes_written(kept: Kept) -> int:
    payload = b"" if kept.after.payload is kept.before.payload else kept.after.payload
    return len(payload) + len(kept.after.result or b"")


def _row(kept: Kept, lane: int | None, lines: Lines) -> tuple[Any, ...]:
    before, job = kept.before, kept.after
    return (
        before.seq, before.version, lines.number(job.queue), CODES[job.state], -job.priority,
        job.due_at, kept.place, job.expires_at, job.version, job.attempt, job.crashes,
        job.releases | ALONE * job.alone, job.token, job.deadline_at, job.finished_at,
        job.overrides.lease_ms, job.cancel_requested, kept.noted, job.task, job.tenant, job.group,
        job.origin, job.reason and str(job.reason), extra_of(job),
        None if job.payload is before.payload else job.payload, job.result, job.fingerprint,
        lane, job.key,
    )  # fmt: skip
