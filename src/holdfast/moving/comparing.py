"""Do two stores say the same of all jobs, keys and records? Jobs are read from the first to the
last, a little at a time, side by side: what was moved arrived in the same order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec

from holdfast.core import moving
from holdfast.core.model import Job, Queue, Reason, State
from holdfast.core.moving import HeldKey, Sum, Whole
from holdfast.core.policy import retention_ms
from holdfast.moving.copying import BATCH, BATCH_BYTES_MAX, Copied, key_pages
from holdfast.moving.records import Side
from holdfast.upkeep.paging import records

_WRONG_MAX = 20


class Comparison(msgspec.Struct):
    """By state, what each side has. `ended` are jobs that upkeep buried, cancelled or deleted on
    one side since they were moved, as it will on the other; `wrong` says what else differs, the
    first of `wrong_count`."""

    source: dict[State, Sum] = msgspec.field(default_factory=lambda: defaultdict(Sum))
    target: dict[State, Sum] = msgspec.field(default_factory=lambda: defaultdict(Sum))
    ended: int = 0
    keys: int = 0
    wrong: list[str] = []
    wrong_count: int = 0

    @property
    def is_same(self) -> bool:
        return self.wrong_count == 0

    def differs(self, text: str) -> None:
        self.wrong_count += 1
        if len(self.wrong) < _WRONG_MAX:
            self.wrong.append(text)


class Comparing:
    """`begun_at` and `now` are instants of the source."""

    def __init__(self, source: Side, target: Side, *, begun_at: int, now: int) -> None:
        self._source = source
        self._target = target
        self._begun_at = begun_at
        self._now = now
        self._queues: dict[str, Queue] = {}
        self._found = Comparison()

    async def run(self, copied: Copied, tell: Callable[[int], None]) -> Comparison:
        views = await self._source.engine.queues(counts=False)
        self._queues = {view.queue.name: view.queue for view in views}
        await self._compare_jobs(tell)
        for name in self._queues:
            await self._compare_keys(name)
        for kind, values in copied.items():
            await self._compare_records(kind, values)
        return self._found

    async def _compare_jobs(self, tell: Callable[[int], None]) -> None:
        ours, theirs = _all_of(self._source), _all_of(self._target)
        one, other = await anext(ours, None), await anext(theirs, None)
        seen = 0
        while one is not None or other is not None:
            if one is not None and other is not None and one.job.id == other.job.id:
                self._compare(one, other)
            elif one is not None and await _is_missing(one.job, self._target):
                self._count(self._found.source, one)
                self._lost(one.job, "is not in the target")
                one = await anext(ours, None)
                continue
            elif other is not None and await _is_missing(other.job, self._source):
                self._count(self._found.target, other)
                self._lost(other.job, "is no longer in the source")
                other = await anext(theirs, None)
                continue
            else:
                # Both are on both sides: each is met again, where the other side has it.
                self._out_of_order(one, other)
            seen += 1
            if seen % BATCH == 0:
                tell(BATCH)
            one, other = await anext(ours, None), await anext(theirs, None)

    def _out_of_order(self, one: Whole | None, other: Whole | None) -> None:
        for sums, whole in ((self._found.source, one), (self._found.target, other)):
            if whole is not None:
                self._count(sums, whole)
                self._found.differs(f"job {whole.job.id} has another place in the order")

    def _compare(self, one: Whole, other: Whole) -> None:
        same = self._count(self._found.source, one) == self._count(self._found.target, other)
        if same:
            return
        if self._is_ended(one.job) or self._is_ended(other.job):
            self._found.ended += 1
        else:
            text = f"job {one.job.id} was changed in the source or the target meanwhile"
            self._found.differs(text)

    def _is_ended(self, job: Job) -> bool:
        """By upkeep, since it was moved."""
        is_late = job.finished_at is not None and job.finished_at >= self._begun_at
        return is_late and job.reason in (Reason.EXPIRED, Reason.DEPENDENCY)

    def _count(self, sums: dict[State, Sum], whole: Whole) -> int:
        digest = moving.digest(whole)
        sums[whole.job.state].add(digest)
        return digest

    def _lost(self, job: Job, fate: str) -> None:
        queue = self._queues.get(job.queue)
        kept_ms = retention_ms(queue, job.state) if queue else 0
        if job.finished_at is not None and job.finished_at + kept_ms <= self._now:
            self._found.ended += 1
        else:
            self._found.differs(f"job {job.id} {fate}")

    async def _compare_records(self, kind: str, copied: Mapping[str, bytes | None]) -> None:
        """With what was copied: in the source a schedule may have ticked since."""
        there = {each.key: each.value async for each in records(self._target.engine, kind)}
        for key, value in copied.items():
            if there.get(key) != value:
                self._found.differs(f"the {kind} {key} was changed in the target meanwhile")

    async def _compare_keys(self, queue: str) -> None:
        """A key that is past its window may be gone on either side."""
        there: dict[str, HeldKey] = {}
        pages = key_pages(self._target, queue)
        async for page in key_pages(self._source, queue):
            last = page[-1].key.encode()
            while not there or max(key.encode() for key in there) < last:
                more = await anext(pages, None)
                if more is None:
                    break
                there |= {held.key: held for held in more}
            for held in page:
                self._found.keys += 1
                if there.pop(held.key, None) != held and held.until_at > self._now:
                    self._found.differs(f"key {held.key!r} of queue {queue} was not moved")
            there = {key: held for key, held in there.items() if key.encode() > last}


async def _is_missing(job: Job, side: Side) -> bool:
    return await side.engine.get(job.id) is None


async def _all_of(side: Side) -> AsyncIterator[Whole]:
    after: int | None = 0
    while after is not None:
        stretch = await side.mover.jobs(after=after, limit=BATCH, bytes_max=BATCH_BYTES_MAX)
        for whole in stretch.wholes:
            yield whole
        after = stretch.after
