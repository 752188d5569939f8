"""Jobs on their way in. A batch that nothing speaks against is one statement; otherwise queues,
keys and known ids are read under locks, decided in order as the reference does, and written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.core import admission, checks, codec, lifecycle, limits
from holdfast.core.model import Job, NewJob, Queue, Receipt, State, Status
from holdfast.engines.postgres import write
from holdfast.engines.postgres.queues import Lines, read_lines
from holdfast.engines.postgres.rows import brief_job, columns
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
            if job.key is not None:
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
    receipts: list[Receipt] = []
    while len(receipts) < len(jobs):
        # A job that changes an earlier one of its own batch goes in after that one is written.
        rest = jobs[len(receipts) :]
        picture = yield from look(store, [job for job in rest if _is_sound(job)], lines)
        yield from _measure(picture, rest)
        for new in rest:
            receipt = picture.enqueue(new)
            if receipt is None:
                break
            receipts.append(receipt)
        yield from keep(store, picture)
    return receipts


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
        picture.stored[names[number], key] = _Key(id_, until)
        picture.keys[names[number], key] = None if fresh else _Key(id_, until)
    holders = sorted({held.id for held in picture.keys.values() if held is not None})
    if holders:
        for row in (yield Ask(_HOLDERS, (store.ns, holders))):
            job = brief_job(row)
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


def keep(store: Store, picture: Picture) -> Steps[None]:
    """Write what the batch made of the picture."""
    yield from write.put(store, picture.now, picture.added, picture.lines)
    yield from write.rewrite(store, picture.holders.values(), picture.lines)
    differing = [
        (picture.lines.number(queue), key, held and held.id, held and held.until)
        for (queue, key), held in picture.keys.items()
        if held != picture.stored.get((queue, key))
    ]
    if differing:
        yield Ask(_KEEP_KEYS, columns(differing, 4))


class _Key(NamedTuple):
    id: str
    until: int


class Picture:
    """What a batch meets: known ids, held keys and their jobs; and what it makes of them."""

    def __init__(self, now: int, numbers: Iterator[int], lines: Lines) -> None:
        self.now = now
        self.numbers = numbers
        self.lines = lines
        self.known: set[str] = set()
        # Who holds each key, and what the database says of it so far.
        self.keys: dict[tuple[str, str], _Key | None] = {}
        self.stored: dict[tuple[str, str], _Key] = {}
        self.holders: dict[str, Kept] = {}
        self.depth: Counter[str] = Counter()
        self.added: dict[int, NewJob] = {}
        self._fresh: set[str] = set()
        # Jobs that this very transaction ends: they hold their key no longer than its window.
        self.ended: set[str] = set()

    def enqueue(self, new: NewJob) -> Receipt | None:
        """None: it is about to change a job that must be written first."""
        queue = self.lines.find(new.queue)
        try:
            checks.check_job(new, queue.payload_max if queue else limits.PAYLOAD_MAX)
            if queue is None:
                raise admission.unknown(new.queue)
            if new.id in self.known:
                return Receipt(id=new.id, status=Status.DUPLICATE)
            holder = self._holder(new)
            if holder is not None and holder in self._fresh and new.key_policy != "keep":
                return None
            if holder is not None:
                self._meet(holder, new, queue.payload_max)
                return Receipt(id=holder, status=Status.DUPLICATE)
            admission.check_room(queue, self.depth[queue.name])
        except UsageError as error:
            return admission.refused(new.id, error)
        self._admit(new)
        return Receipt(id=new.id, status=Status.NEW)

    def follow_up(self, new: NewJob) -> None:
        """A follow-up job passes a full or closed queue; a known id or a held key skips it."""
        if new.id not in self.known and self._holder(new) is None:
            self._admit(new)

    def _admit(self, new: NewJob) -> None:
        self.known.add(new.id)
        self.added[next(self.numbers)] = new
        self._fresh.add(new.id)
        self.depth[new.queue] += 1
        if new.key is not None:
            self.keys[new.queue, new.key] = _Key(new.id, self.now + new.key_window_ms)

    def _holder(self, new: NewJob) -> str | None:
        """The id of the job that holds this key: unfinished, or still within its window."""
        if new.key is None:
            return None
        held = self.keys.get((new.queue, new.key))
        if held is None:
            return None
        kept = self.holders.get(held.id)
        stored = kept is not None and not kept.after.state.finished and held.id not in self.ended
        unfinished = stored or held.id in self._fresh
        return held.id if unfinished or held.until > self.now else None

    def _meet(self, holder: str, new: NewJob, payload_max: int) -> None:
        """A later job under a held key: what it says goes to the job that still waits."""
        if new.key_policy == "keep":
            return
        kept = self.holders.get(holder)
        if kept is None or kept.after.state is not State.WAITING:
            return
        if new.key_policy == "replace":
            change = lifecycle.replace_waiting(kept.after, new, self.now)
        else:
            payload = _merged(kept.after, new, payload_max)
            change = lifecycle.merge_waiting(kept.after, payload, self.now)
        self.holders[holder] = write.changed(kept, change, self.numbers)


def _merged(job: Job, new: NewJob, payload_max: int) -> bytes:
    payload = codec.merge_patch(job.payload, new.payload)
    checks.check_job(replace(new, payload=payload), payload_max)
    return payload
