"""Jobs on their way in. A batch that nothing speaks against is one statement; otherwise queues,
keys and known ids are read under locks, decided in order as the reference does, and written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core import checks, limits, meeting
from holdfast.core.model import Job, NewJob, Queue, Receipt, Status
from holdfast.engines.postgres import edges, lanes, write
from holdfast.engines.postgres.picture import Key, Picture
from holdfast.engines.postgres.queues import Lines, read_lines
from holdfast.engines.postgres.rows import columns, kept_job
from holdfast.engines.postgres.steps import STATEMENT_BYTES_MAX, Ask, Steps, Store, only
from holdfast.engines.postgres.write import Kept
from holdfast.errors import UsageError

_PUT_PLAIN = """
SELECT $schema.put_plain($1::int, $2::bigint, $3::text[], $4::int, $5::int[], $6::text[],
    $7::text[], $8::bytea[], $9::smallint[], $10::bigint[], $11::bigint[], $12::text[],
    $13::text[], $14::bigint[], $15::bytea[])
"""
_GUARD_DEPTH = """
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
_HOLD_KEYS = """
SELECT * FROM $schema.hold_keys($1::int, $2::int[], $3::text[], $4::text[], $5::bigint[])
"""
_KEEP_KEYS = "SELECT $schema.keep_keys($1::int[], $2::text[], $3::text[], $4::bigint[])"
_HOLDERS = "SELECT * FROM $schema.hold_ids($1::int, $2::text[], true)"
_HAVE_FLOW = """
SELECT EXISTS (
    SELECT FROM (
        SELECT u.id FROM unnest($2::text[]) AS u(id)
        UNION ALL
        SELECT k.id FROM unnest($3::int[], $4::text[]) AS u(queue, key)
        CROSS JOIN LATERAL (
            SELECT x.id FROM $schema.keys x WHERE x.queue = u.queue AND x.key = u.key OFFSET 0
        ) k
    ) w
    CROSS JOIN LATERAL (
        SELECT FROM $schema.jobs j WHERE j.id = w.id AND j.ns + 0 = $1::int AND j.flow <> 0 OFFSET 0
    ) j
)
"""
_KNOWN = "SELECT * FROM $schema.known($1::int, $2::text[])"


def enqueue(store: Store, jobs: Sequence[NewJob]) -> Steps[list[Receipt]]:
    if _is_plain(jobs):
        names = sorted({job.queue for job in jobs})
        refs = {name: position for position, name in enumerate(names, 1)}
        ids, tasks, payloads, ranks, delays, expiries, _, *rest = write.job_columns(jobs)
        values = (
            store.ns, store.given_ms, names, max(map(len, payloads)),
            [refs[job.queue] for job in jobs] if len(names) > 1 else [],
            ids, tasks, payloads, ranks, delays, expiries, *rest,
        )  # fmt: skip
        known = only((yield Ask(_PUT_PLAIN, values, alone=True)))
        if known is not None:
            return _plain_receipts(ids, known)
    return (yield from _enqueue_carefully(store, jobs))


def _is_plain(jobs: Sequence[NewJob]) -> bool:
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


def _plain_receipts(ids: Sequence[str], known: Sequence[str]) -> list[Receipt]:
    if not known:
        return [Receipt(id=id_, status=Status.NEW) for id_ in ids]
    old = set(known)
    return [Receipt(id=id_, status=Status.DUPLICATE if id_ in old else Status.NEW) for id_ in ids]


def _enqueue_carefully(store: Store, jobs: Sequence[NewJob]) -> Steps[list[Receipt]]:
    names = {job.queue for job in jobs if limits.QUEUE_NAME.match(job.queue)}
    lines = yield from read_lines(store, names)
    sound = [job for job in jobs if _is_sound(job)]
    locked = yield from lock_flow(store, sound, lines)
    order, circular = yield from _arrange(store, jobs)
    receipts: list[Receipt] = []
    while len(receipts) < len(jobs):
        # A job that changes an earlier one of its own batch goes in after that one is written.
        rest = order[len(receipts) :]
        some = [jobs[place] for place in rest if _is_sound(jobs[place])]
        picture = yield from look(store, some, lines)
        yield from _measure(picture, [jobs[place] for place in rest])
        for place in rest:
            receipt = picture.enqueue(jobs[place], circular.get(place))
            if receipt is None:
                break
            receipts.append(receipt)
        yield from keep(store, picture, locked=locked)
    given = dict(zip(order, receipts, strict=True))
    return [given[place] for place in range(len(jobs))]


def lock_flow(
    store: Store, jobs: Sequence[NewJob | Job], lines: Lines, ids: Iterable[str] = ()
) -> Steps[bool]:
    """Hold the flow of the queues, of the jobs' parents and of those with these ids, if there is
    any to hold; whether it is held."""
    parents = {id_ for job in jobs for id_ in job.after}
    needed = bool(store.duties.locks or parents or lines.laned)
    needed = needed or any(job.group is not None for job in jobs)
    if store.duties.is_final and not needed:
        needed = yield from _peek(store, jobs, lines, ids)
    if not needed:
        return False
    names = yield from lanes.queues_of(store, parents.union(ids))
    unread = {name for name in names if name not in lines}
    if unread:
        lines.add((yield from read_lines(store, unread)))
    yield from lanes.lock(lines.numbers)
    return True


def _peek(
    store: Store, jobs: Sequence[NewJob | Job], lines: Lines, ids: Iterable[str]
) -> Steps[bool]:
    """Has one of these jobs a flow, or one that holds the key of a new one?"""
    keyed = [(lines.number(job.queue), job.key) for job in jobs if job.key and job.queue in lines]
    values = (store.ns, list(ids), *columns(keyed, 2))
    return bool(only((yield Ask(_HAVE_FLOW, values))))


def _arrange(store: Store, jobs: Sequence[NewJob]) -> Steps[meeting.Arrangement]:
    if not any(job.after for job in jobs):
        return list(range(len(jobs))), {}
    ids = [job.id for job in jobs if limits.JOB_ID.match(job.id)]
    return meeting.arrange(jobs, {row[0] for row in (yield Ask(_KNOWN, (store.ns, ids)))})


def _is_sound(job: NewJob) -> bool:
    """May it be sent to the database at all?"""
    try:
        checks.check_job(job)
    except UsageError:
        return False
    return True


def look(store: Store, jobs: Sequence[NewJob], lines: Lines, *, extra: int = 0) -> Steps[Picture]:
    """Read what the jobs meet. Keys are locked before jobs, each in one order for everybody.

    There is a number in the picture for each of the jobs, and `extra` ones.
    """
    picture = Picture(*(yield from write.draw(store, len(jobs) + extra)), lines)
    wanted: dict[tuple[str, str], NewJob] = {}
    for job in jobs:
        if job.key is not None and job.queue in lines:
            wanted.setdefault((job.queue, job.key), job)
    if wanted:
        yield from _look_at_keys(store, picture, wanted)
    rows = (yield Ask(_KNOWN, (store.ns, [job.id for job in jobs]))) if jobs else []
    picture.known.update(row[0] for row in rows)
    parents = {id_ for job in jobs for id_ in job.after}
    picture.states |= yield from edges.hold_parents(store, parents)
    return picture


def _look_at_keys(
    store: Store, picture: Picture, wanted: dict[tuple[str, str], NewJob]
) -> Steps[None]:
    names = {picture.lines.number(queue): queue for queue, _ in wanted}
    asked = [
        (picture.lines.number(queue), key, job.id, picture.now + job.key_window_ms)
        for (queue, key), job in wanted.items()
    ]
    for number, key, id_, until, fresh in (yield Ask(_HOLD_KEYS, (store.ns, *columns(asked, 4)))):
        picture.stored[names[number], key] = Key(id_, until)
        picture.keys[names[number], key] = None if fresh else Key(id_, until)
    holders = sorted({held.id for held in picture.keys.values() if held is not None})
    if holders:
        for row in (yield Ask(_HOLDERS, (store.ns, holders))):
            job = kept_job(row)
            picture.holders[job.id] = Kept(job, job, row[29])


def _measure(picture: Picture, jobs: Sequence[NewJob]) -> Steps[None]:
    """Count the waiting jobs of queues with a bound, one enqueuer at a time."""
    bounded: dict[int, Queue] = {}
    for name in {job.queue for job in jobs}:
        queue = picture.lines.find(name)
        if queue is not None and queue.max_depth is not None:
            bounded[picture.lines.number(name)] = queue
    if not bounded:
        return
    yield Ask(_GUARD_DEPTH, (sorted(bounded),))
    for number, queue in sorted(bounded.items()):
        rows = yield Ask(_DEPTH, (number, queue.max_depth))
        picture.depth[queue.name] = sum(row[0] for row in rows)


def keep(store: Store, picture: Picture, *, locked: bool) -> Steps[None]:
    """Write what the batch made of the picture."""
    counts = {child.seq: len(open_) for child, open_ in picture.children}
    yield from write.put(store, picture.now, picture.added, picture.lines, counts)
    yield from edges.link(store, picture.children)
    if picture.lost:
        yield from edges.orphan(store, picture.lost)
    holders = picture.holders.values()
    yield from write.rewrite(store, holders, picture.lines, now=picture.now, locked=locked)
    differing = [
        (picture.lines.number(queue), key, held and held.id, held and held.until)
        for (queue, key), held in picture.keys.items()
        if held != picture.stored.get((queue, key))
    ]
    if differing:
        yield Ask(_KEEP_KEYS, columns(differing, 4))
