"""Queues are the same in every partition, though one may be out when they are changed.

Beside its queues each partition keeps what was last said of each, with a number that grows. The
greatest word holds; whoever was out reads it before it is let back in. Killed halfway, the next
opening goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.model import Queue, Record
from holdfast.engines.base import ANY, Engine, Known, Saved
from holdfast.engines.partitioned.partition import Partition
from holdfast.errors import EngineError, EngineUnavailable, SchemaMismatch, UnknownQueue

KIND = "partition-queue"
_ROUNDS_MAX = 20


class Word(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was said of a queue: its settings, or None when it was dropped."""

    number: int
    queue: Queue | None = None

    @property
    def rank(self) -> tuple[int, bytes]:
        """Two of the same number were said at once: then any rule will do that is one."""
        return self.number, msgspec.json.encode(self)


async def number_of(engine: Engine, name: str) -> int:
    """Of the last word on the queue, 0 if there was none: the next one's must be greater."""
    known = (await _words(engine)).get(name)
    return 0 if known is None else known[0].number


async def decide(
    engine: Engine, name: str, queue: Queue | None, *, instead_of: Known, floor: int
) -> Word | None:
    """The next word on the queue, if what is there is what it was made from. One partition decides
    for all, so that of many at once none is lost; `floor` is the greatest number elsewhere."""
    for _ in range(_ROUNDS_MAX):
        known, version = (await _words(engine)).get(name, (None, 0))
        if instead_of is not ANY and instead_of != await _current(engine, name, known):
            return None
        word = Word(1 + max(floor, known.number if known else 0), queue)
        record = Record(kind=KIND, key=name, value=msgspec.json.encode(word), version=version)
        if await engine.save([record]) == [Saved.SAVED]:
            return word
    raise EngineUnavailable(f"queue {name} is changed by others all the time: try again later")


async def bring(engine: Engine, name: str, word: Word) -> None:
    """Make the partition do the word, then know it; a greater one that it knows wins.

    Another process may do the same with another word: each looks again after it acted, and does
    the greatest, so that whoever acts last does that.
    """
    done: Word | None = None
    for _ in range(_ROUNDS_MAX):
        known, version = (await _words(engine)).get(name, (None, 0))
        if known is not None and known.rank >= word.rank:
            word = known
        if done != word:
            await _do(engine, name, word)
            done = word
            continue
        if known == word:
            return
        record = Record(kind=KIND, key=name, value=msgspec.json.encode(word), version=version)
        await engine.save([record])
    raise EngineUnavailable(f"queue {name} is changed by others all the time: try again later")


async def catch_up(partition: Partition, others: Iterable[Partition]) -> None:
    """Bring what was said while the partition was out, or what a killed process left undone."""
    engine = partition.engine
    known = await _words(engine)
    words = {name: word for name, (word, _) in known.items()}
    for other in others:
        # Another's failure is its own affair, and is met when it is asked for jobs.
        with contextlib.suppress(EngineError):
            for name, (word, _) in (await _words(other.engine)).items():
                if name not in words or word.rank > words[name].rank:
                    words[name] = word
    if not words:
        return
    there = {view.queue.name: view.queue for view in await engine.queues(counts=False)}
    behind = {
        name: word
        for name, word in words.items()
        if there.get(name) != word.queue or name not in known or known[name][0] != word
    }
    for name, word in behind.items():
        if word.queue is not None and name not in there:
            # Dead queues may be further down in the list, or each other's.
            await engine.declare(replace(word.queue, dead_queue=None))
    for name, word in behind.items():
        await bring(engine, name, word)


async def _current(engine: Engine, name: str, known: Word | None) -> Queue | None:
    """What the queue is, or is about to be; of some nothing was ever said."""
    if known is not None:
        return known.queue
    views = await engine.queues(counts=False)
    return next((view.queue for view in views if view.queue.name == name), None)


async def _do(engine: Engine, name: str, word: Word) -> None:
    if word.queue is None:
        await engine.drop(name)
    else:
        try:
            await engine.declare(word.queue)
        except UnknownQueue:
            # Its dead queue was dropped since, and counts no more.
            await engine.declare(replace(word.queue, dead_queue=None))


async def _words(engine: Engine) -> dict[str, tuple[Word, int]]:
    found: dict[str, tuple[Word, int]] = {}
    after: str | None = None
    while page := await engine.load(KIND, after=after, limit=limits.PAGE_MAX):
        for record in page:
            found[record.key] = (_decode(record), record.version)
        after = page[-1].key
    return found


def _decode(record: Record) -> Word:
    try:
        return msgspec.json.decode(record.value or b"", type=Word)
    except msgspec.DecodeError as error:
        raise SchemaMismatch(
            f"what is kept of queue {record.key} cannot be read ({error}): run the version of"
            " Holdfast that wrote it"
        ) from None
