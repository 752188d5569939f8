"""What a batch of new jobs meets, and what comes of it: every decision, and no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.core import admission, lifecycle, meeting
from holdfast.core.lanes import lane_of
from holdfast.core.lifecycle import Parting
from holdfast.core.model import Job, NewJob, Queue, Receipt, State, Status
from holdfast.engines.postgres import write
from holdfast.engines.postgres.queues import Lines
from holdfast.engines.postgres.rows import CODES
from holdfast.engines.postgres.write import Kept
from holdfast.errors import UsageError


class Key(NamedTuple):
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
        self.keys: dict[tuple[str, str], Key | None] = {}
        self.stored: dict[tuple[str, str], Key] = {}
        self.holders: dict[str, Kept] = {}
        self.depth: Counter[str] = Counter()
        self.added: dict[int, NewJob] = {}
        self._fresh: set[str] = set()
        # Parents and how they are; new jobs with the parents that they wait for; and those of them
        # that will never have what they need, with the parent and how it ended.
        self.states: dict[str, State] = {}
        self.children: list[tuple[Job, list[str]]] = []
        self.lost: dict[int, tuple[str, int | None]] = {}
        # Jobs that this very transaction ends: they hold their key no longer than its window.
        self.ended: set[str] = set()

    def enqueue(self, new: NewJob, circle: str | None = None) -> Receipt | None:
        """None: it is about to change a job that must be written first."""
        queue = self.lines.find(new.queue)
        try:
            queue = admission.check_new(new, queue)
            if new.id in self.known:
                return Receipt(id=new.id, status=Status.DUPLICATE)
            if circle is not None:
                raise admission.circular(new.id, circle)
            holder = self._holder(new)
            if holder is not None and holder in self._fresh and new.key_policy != "keep":
                return None
            if holder is not None:
                self._meet(holder, new, queue)
                return Receipt(id=holder, status=Status.DUPLICATE)
            for parent in new.after:
                if parent not in self.states:
                    raise admission.unknown_parent(new.id, parent)
            lane_of(new, queue, strict=True)
            admission.check_room(queue, self.depth[queue.name])
        except UsageError as error:
            return admission.refused(new.id, error)
        self._admit(new)
        return Receipt(id=new.id, status=Status.NEW)

    def follow_up(self, then: Sequence[NewJob]) -> None:
        """Follow-up jobs pass a full or closed queue; a known id or a held key skips one."""
        for place in meeting.arrange(then, self.known)[0]:
            new = then[place]
            if new.id not in self.known and self._holder(new) is None:
                self._admit(new)

    def may_follow(self, then: Sequence[NewJob], done: str) -> bool:
        """Could all of them come in, once the job `done` is finished?"""
        return not then or meeting.may_follow(
            then,
            meeting.arrange(then, self.known),
            queue_of=self._queue,
            is_known=self.known.__contains__,
            is_held=lambda new: self._holder(new, done) is not None,
            is_orphan=lambda new, coming: any(
                parent not in self.states and parent not in coming for parent in new.after
            ),
        )

    def _queue(self, name: str) -> Queue:
        queue = self.lines.find(name)
        assert queue is not None
        return queue

    def _admit(self, new: NewJob) -> None:
        self.known.add(new.id)
        number = next(self.numbers)
        self.added[number] = new
        self._fresh.add(new.id)
        self.depth[new.queue] += 1
        self.states[new.id] = State.WAITING
        if new.after:
            self._judge(lifecycle.admit(new, number, self.now))
        if new.key is not None:
            self.keys[new.queue, new.key] = Key(new.id, self.now + new.key_window_ms)

    def _judge(self, child: Job) -> None:
        """What the parents of a new job mean for it: some may have ended."""
        waits_for: list[str] = []
        for parent in child.after:
            state = self.states[parent]
            parting = lifecycle.after_parent(child, state) if state.finished else Parting.HELD
            if parting is Parting.CANCELLED:
                self.children.append((child, []))
                self.lost[child.seq] = (parent, CODES[state])
                self.states[child.id] = State.CANCELLED
                return
            if parting is Parting.HELD:
                waits_for.append(parent)
        self.children.append((child, waits_for))

    def _holder(self, new: NewJob, done: str | None = None) -> str | None:
        """The id of the job that holds this key: unfinished, or still within its window. `done`
        is about to be finished."""
        if new.key is None:
            return None
        held = self.keys.get((new.queue, new.key))
        if held is None:
            return None
        kept = self.holders.get(held.id)
        stored = kept is not None and not kept.after.state.finished
        stored = stored and held.id not in self.ended and held.id != done
        is_fresh = held.id in self._fresh and self.states.get(held.id) is State.WAITING
        unfinished = stored or is_fresh
        return held.id if unfinished or held.until > self.now else None

    def _meet(self, holder: str, new: NewJob, queue: Queue) -> None:
        kept = self.holders.get(holder)
        change = meeting.meet(kept.after, new, queue, self.now) if kept else None
        if kept is not None and change is not None:
            self.holders[holder] = write.changed(kept, change, self.numbers)
