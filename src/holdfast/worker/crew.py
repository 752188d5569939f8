"""The children of one worker: who gets which call, and what becomes of a dead child's calls.

It holds no lease and settles nothing: it tells the supervisor how each job ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable
from time import monotonic

from msgspec.structs import replace

from holdfast.core.model import Failure, Note, Queue
from holdfast.worker import processes
from holdfast.worker.births import Births
from holdfast.worker.calls import BUILT_IN, COMMAND, UNSTARTED_S, Placed, Seat, call_of, to_recall
from holdfast.worker.clock import boot_s
from holdfast.worker.deaths import after_death, why_end
from holdfast.worker.ears import Ears
from holdfast.worker.endings import is_timeout, own_ending
from holdfast.worker.hand import KINDS, Held, Kind
from holdfast.worker.lines import Lines
from holdfast.worker.link import Link, Listener
from holdfast.worker.nursery import Template
from holdfast.worker.wire import (
    AskedCancel,
    AskedRelease,
    Back,
    Broken,
    Cancel,
    ChildSetup,
    Down,
    Ended,
    Finish,
    Ready,
    Recall,
    TaskInfo,
    Told,
    Up,
)

_log = logging.getLogger("holdfast.worker")

TICK_S = 0.1
_SOLO_IDLE_S = 10.0
_FORKED_SOLOS = 7


class Crew:
    """`python` is for the children that run Python, `commands` for the one that runs commands, and
    `webhooks` for the one that sends those; each may be None."""

    webhooks: ChildSetup | None = None

    def __init__(
        self,
        ears: Ears,
        queue_of: Callable[[str], Queue],
        *,
        python: ChildSetup | None,
        processes: int,
        commands: ChildSetup | None,
        make: Callable[[ChildSetup, Listener, bool], Link] = Link,
        template: Template | None = None,
    ) -> None:
        self.tasks: dict[str, TaskInfo] = {}
        self.broken: Failure | None = None
        self._ears = ears
        self._queue_of = queue_of
        self._python = python
        self._processes = processes
        self._commands = commands
        self._make = make
        self._template = template
        self._sweep_due = False
        self._seats: dict[Link, Seat] = {}
        self._lines = Lines(self._batch_of)
        self._number = 0
        self._births = Births(self._spawn)
        self._solo_at = 0.0
        self._isolated_max = max(2, processes)
        self._alone_max = max(processes, _FORKED_SOLOS if template else self._isolated_max)
        self._closing = False
        self._ready_at = monotonic()

    @property
    def capacity(self) -> int:
        """How many calls can run at once, beside those that run alone."""
        return sum(self.capacity_of(kind) for kind in KINDS if kind != "solo")

    def capacity_of(self, kind: Kind) -> int:
        match kind:
            case "python":
                return self._processes * self._python.slots if self._python else 0
            case "solo":
                return self._isolated_max if self._python and self._make is Link else 0
            case "command":
                return self._commands.slots if self._commands else 0
            case "webhook":
                return self.webhooks.slots if self.webhooks else 0

    def kind_of(self, info: TaskInfo, *, alone: bool = False) -> Kind:
        """Without child processes nothing can run alone."""
        if info.name in BUILT_IN:
            return "command" if info.name == COMMAND else "webhook"
        return "solo" if (alone or info.isolated) and self._make is Link else "python"

    @property
    def _solos_max(self) -> int:
        """One more than culprits may have."""
        return 1 + self._alone_max

    def running(self) -> int:
        """Calls that have started, by what the children wrote on their boards."""
        return sum(len(seat.link.board.running()) for seat in self._living())

    async def start(self, worker: str) -> None:
        """The children are told what their worker is called."""
        for built_in in filter(None, (self._commands, self.webhooks)):
            await self._spawn(replace(built_in, worker=worker), solo=False)
        if self._python is not None:
            self._python = replace(self._python, worker=worker)
            for _ in range(self._processes):
                if self._template is None:
                    await self._spawn(self._python, solo=False)
                else:
                    # It imports the application first, however long that takes.
                    self._births.later(self._python, solo=False, after_s=0.0)

    def give(self, taken: Iterable[Held]) -> None:
        """Newly leased jobs."""
        for held in taken:
            self._lines.add(held)
        self.dispatch()

    def dispatch(self) -> None:
        """Hand out what can be, one frame for each child."""
        if self._closing:
            return
        for kind in self._lines.waiting():
            seats = [seat for seat in self._living() if seat.link.kind == kind]
            if kind == "solo" and not any(seat.room > 0 for seat in seats):
                self._bar()
                self._want_solo(seats)
            words: dict[Seat, list[Down]] = {}
            while (seat := max(seats, key=lambda one: one.room, default=None)) is not None:
                if seat.room <= 0 or not (held := self._take(kind)):
                    break
                # Several in a row, so that the search for the emptiest is not done for each.
                words.setdefault(seat, []).append(self._place(seat, held))
                for _ in range(seat.room // 2):
                    if not (held := self._take(kind)):
                        break
                    words[seat].append(self._place(seat, held))
            for seat, said in words.items():
                seat.link.say(said)

    def _take(self, kind: Kind) -> list[Held]:
        """Culprits hold their process for long, or end it. The others go first, as soon as one
        culprit has its turn, and one process is kept for them."""
        if kind != "solo":
            return self._lines.take(kind)
        self._bar()
        culprits = sum(task in self._lines.culprits for task in self._tasks_alone())
        if culprits >= self._solos_max - 1:
            return self._lines.take_innocent()
        return self._lines.take_alone(culprit=culprits == 0)

    def _bar(self) -> None:
        """Isolated tasks may be heavy: few of them at once, however many processes there are."""
        isolated = frozenset(name for name, info in self.tasks.items() if info.isolated)
        count = sum(task in isolated for task in self._tasks_alone())
        self._lines.barred = isolated if count > self._isolated_max else frozenset()

    def _tasks_alone(self) -> list[str]:
        """Of the calls that have a process for themselves."""
        solos = (seat for seat in self._living() if seat.link.solo)
        return [placed.held[0].job.task for seat in solos for placed in seat.calls.values()]

    def cancel(self, held: Held, *, lost: bool = False) -> None:
        """Stop this job, if it runs; one that has not started and is lost is just left."""
        if lost and self._lines.remove(held):
            return
        for seat in self._living():
            placed = seat.calls.get(held.call)
            if placed is not None and held in placed.held:
                placed.cancelled = True
                if lost:
                    placed.lost_at = monotonic()
                seat.link.say([Cancel(placed.number, lost)])

    def tick(self) -> None:
        """Timeouts, lost calls that do not end, idle solo children, jobs that do not start."""
        now = monotonic()
        self.vouch()
        for seat in list(self._living()):
            seat.measure(TICK_S)
            if why := why_end(seat, now):
                self._end(seat, why)
            elif seat.link.solo and not seat.calls and now - seat.idle_since > _SOLO_IDLE_S:
                seat.finishing = True
                seat.link.say([Finish()])
        if self._sweep_due:
            self._sweep()
        if any(seat.ready for seat in self._living() if seat.link.setup.target is not None):
            self._ready_at = now
        for seat in to_recall(self._living(), now):
            seat.link.say([Recall()])
        self.dispatch()

    def vouch(self) -> None:
        """Tell the children until when what they hold may begin: leases were renewed."""
        for seat in self._living():
            seat.vouch()

    @property
    def unready_s(self) -> float:
        """How long no child could run Python, though some should."""
        return monotonic() - self._ready_at if self._python else 0.0

    def give_up_unstarted(self) -> list[Held]:
        """What has waited here for so long that another worker should have it."""
        return self._lines.take_old(boot_s() - UNSTARTED_S)

    def close(self) -> list[Held]:
        """Start nothing more; the jobs that wait here. Children give back theirs as they answer."""
        self._closing = True
        for seat in self._living():
            seat.link.say([Recall()])
        return self._lines.clear()

    def withdraw(self, held: Held) -> bool:
        """Take back a job that waits here; False when it is not here any more."""
        return self._lines.remove(held)

    def withdraw_all(self, tasks: Container[str]) -> list[Held]:
        """Take back what waits here of these tasks."""
        return self._lines.take_tasks(tasks)

    def shed(self, kind: Kind, most: int) -> list[Held]:
        """Give up what waits here beyond so many, the latest first."""
        return self._lines.shed(kind, most)

    async def stop(self, why: str) -> None:
        """Kill every child and wait until each one's end has been told."""
        self._closing = True
        await self._births.stop()
        seats = list(self._seats.values())
        for seat in seats:
            self._end(seat, why)
        for seat in seats:
            await seat.link.dead()
        if self._template is not None:
            self._template.end()
            self._sweep()

    def heard(self, link: Link, words: list[Up]) -> None:
        seat = self._seats[link]
        for word in words:
            match word:
                case Ended(number=number, endings=endings):
                    placed = seat.take_back(number)
                    if placed is not None:
                        if link.solo:
                            timed_out = any(map(is_timeout, endings))
                            self._lines.judge(placed.held[0].job.task, culprit=timed_out)
                        for held, ending in zip(placed.held, endings, strict=True):
                            self._ears.ended(held, own_ending(placed, held, ending))
                case Told(number=number, index=index):
                    told = seat.calls.get(number)
                    if told is not None:
                        note = Note(
                            progress=word.progress, checkpoint=word.checkpoint, output=word.output
                        )
                        self._ears.noted(told.held[index], note)
                case Back(numbers=numbers):
                    self._back(seat, numbers)
                case Ready(tasks=tasks):
                    self._ready(seat, tasks)
                case Broken(failure=failure):
                    self.broken = failure
                    self._ears.broken(failure)
        self.dispatch()

    def died(self, link: Link) -> None:
        seat = self._seats.pop(link)
        if link.solo:
            for placed in seat.calls.values():
                self._lines.judge(placed.held[0].job.task, culprit=True)
        self._sweep()
        unstarted = after_death(seat, self._ears)
        for placed in reversed(unstarted):
            self._put_back(placed)
        if not self._closing:
            self._replace(seat)
        self.dispatch()

    def _sweep(self) -> None:
        """Kill what dead children left; later, while one is being born that nobody knows yet."""
        self._sweep_due = self._template is not None and self._template.busy
        # Without children for Python, a handler's own processes are this one's children.
        if self._make is Link and not self._sweep_due:
            own = [each.pid for each in self._seats]
            processes.sweep_strangers([*own, self._template.pid] if self._template else own)

    def _batch_of(self, task: str) -> int:
        info = self.tasks.get(task)
        return info.batch if info else 1

    def _place(self, seat: Seat, held: list[Held]) -> Down:
        self._number += 1
        info = self.tasks.get(held[0].lease.job.task)
        gentle = seat.link.setup.target is None or (info is not None and info.gentle)
        placed = Placed(self._number, held, gentle)
        seat.add(placed)
        return call_of(placed, self._queue_of)

    def _back(self, seat: Seat, numbers: Iterable[int]) -> None:
        for number in sorted(numbers, reverse=True):
            if (placed := seat.take_back(number)) is not None:
                self._put_back(placed)

    def _put_back(self, placed: Placed) -> None:
        """It has not started: another child may have it."""
        for held in reversed(placed.held):
            held.call = 0
            if held.cancel_told:
                self._ears.ended(held, AskedCancel("it was cancelled before it started"))
            elif self._closing or held.lost:
                self._ears.ended(held, AskedRelease("the worker is stopping"))
            else:
                self._lines.put_back(held)

    def _ready(self, seat: Seat, tasks: Iterable[TaskInfo]) -> None:
        """The newest child knows best which tasks there are, of its own sort."""
        seat.ready = True
        self._births.succeeded()
        known = {info.name: info for info in tasks}
        if seat.link.setup.target is not None:
            self.broken = None
            self._ready_at = monotonic()
            known |= {name: info for name, info in self.tasks.items() if name in BUILT_IN}
        else:
            known = {**self.tasks, **known}
        if known != self.tasks:
            self.tasks = known
            self._ears.learned(self.tasks)

    def _living(self) -> list[Seat]:
        return [seat for seat in self._seats.values() if seat.link.status is None]

    def _end(self, seat: Seat, why: str) -> None:
        if not seat.ending:
            seat.ending = why
            seat.link.kill()

    def _want_solo(self, seats: list[Seat]) -> None:
        """One for each job that waits, up to the bound."""
        if self._python is None:
            return
        coming = sum(not seat.ready for seat in seats) + self._births.solos
        missing = min(
            self._lines.count_alone() - coming,
            self._solos_max - len(seats) - self._births.solos,
        )
        after_s = max(0.0, self._solo_at - monotonic())
        for _ in range(missing):
            self._births.later(replace(self._python, slots=1), solo=True, after_s=after_s)

    def _replace(self, seat: Seat) -> None:
        """At once; one that died before it was ready, ever more slowly. Those that run a job alone
        are made when they are wanted."""
        delay_s = 0.0 if seat.ready else self._births.failed()
        if seat.link.solo:
            self._solo_at = monotonic() + delay_s
        else:
            self._births.later(seat.link.setup, solo=False, after_s=delay_s)

    async def _spawn(self, setup: ChildSetup, solo: bool) -> None:
        link = self._make(setup, self, solo)
        if setup.target is not None:
            link.template = self._template
        seat = self._seats[link] = Seat(link)
        try:
            await link.start()
        except OSError as error:
            _log.error("a child process cannot be started: %s", error)
            self._forget(link)
            self._replace(seat)
        except asyncio.CancelledError:
            if not link.pid:
                self._forget(link)
            raise

    def _forget(self, link: Link) -> None:
        """It never lived."""
        del self._seats[link]
        link.board.close()
