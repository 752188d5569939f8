"""The children of one worker: gives them calls, and replaces dead ones. The pool holds no leases
and settles nothing: it reports the ending of each job to its listener.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Protocol

from msgspec.structs import replace

from holdfast.core.model import COMMAND_TASK, Failure, Note, Queue
from holdfast.worker import processes
from holdfast.worker.supervisor.child_process import (
    ChildListener,
    ChildProcess,
    ForkTemplate,
    SpawnSchedule,
)
from holdfast.worker.supervisor.dispatch import (
    ChildDeath,
    DispatchQueue,
    PlacedCall,
    PooledChild,
    children_to_recall,
    crash_failure,
    judge_calls,
    reason_to_kill,
)
from holdfast.worker.supervisor.held_leases import RUNNER_KINDS, HeldLease, RunnerKind
from holdfast.worker.supervisor.settle import EndedBatch, ending_for_job, is_timeout
from holdfast.worker.wire import (
    BUILT_IN_TASKS,
    AskedCancel,
    AskedRelease,
    CallsEnded,
    CancelCall,
    ChildBroken,
    ChildReady,
    ChildSetup,
    Ending,
    Finish,
    FromChild,
    GivenBack,
    NoteUpdate,
    Recall,
    TaskInfo,
    ToChild,
)

_log = logging.getLogger("holdfast.worker")

TICK_S = 0.1
_SOLO_IDLE_S = 10.0
_NO_NOTE = Note()
_FORKED_SOLOS = 7
"""Solo children that a worker with a template may have: forks are cheap."""


class ChildPoolListener(Protocol):
    """Callbacks from the child pool to the supervisor."""

    def ended(self, ended: list[EndedBatch]) -> None:
        """These jobs ended in a child."""

    def crashed(self, jobs: list[HeldLease], failure: Failure) -> None:
        """A child died while these jobs ran in it. If there is only one, it is the culprit."""

    def learned(self, tasks: dict[str, TaskInfo]) -> None:
        """The children can run these tasks now."""

    def broken(self, failure: Failure) -> None:
        """The application cannot be imported."""


class ChildPool:
    """`python` is the setup of the children that run handlers, if there are any. `built_in` has the
    setups of the child for commands and of the child for webhooks, if they are enabled.
    """

    def __init__(
        self,
        listener: ChildPoolListener,
        queue_of: Callable[[str], Queue],
        *,
        python: ChildSetup | None,
        processes: int,
        built_in: tuple[ChildSetup, ...] = (),
        make: Callable[[ChildSetup, ChildListener, bool], ChildProcess] = ChildProcess,
        template: ForkTemplate | None = None,
    ) -> None:
        self.queue: DispatchQueue = DispatchQueue()
        self.tasks: dict[str, TaskInfo] = {}
        self.schedules: bytes = b""
        """The schedules that the application declares: see `ChildReady`."""
        self.broken: Failure | None = None
        self.on_sqs = False
        """Whether the engine is the one on SQS, which adds the facts of a message to its jobs."""
        self._listener = listener
        self._queue_of = queue_of
        self._python = python
        self._processes = processes
        self._built_in = built_in
        self._make = make
        self._template = template
        self._deaths: list[tuple[ChildDeath, Failure]] = []
        """Dead children that may have left processes behind, which still run their jobs."""
        self._children: dict[ChildProcess, PooledChild] = {}
        self._gentle_tasks: frozenset[str] = frozenset()
        self._next_number = 1
        self._spawns = SpawnSchedule(self._spawn)
        self._next_solo_at = 0.0
        self._isolated_max = max(2, processes)
        self._alone_max = max(processes, _FORKED_SOLOS if template else self._isolated_max)
        self._closing = False
        self._ready_at = monotonic()

    @property
    def capacity(self) -> int:
        """Calls that can run at once, not counting those that run alone."""
        return sum(self.capacity_of(kind) for kind in RUNNER_KINDS if kind != "solo")

    def capacity_of(self, kind: RunnerKind) -> int:
        match kind:
            case "python":
                return self._processes * self._python.slots if self._python else 0
            case "solo":
                return self._isolated_max if self._python and self._make is ChildProcess else 0
            case "command":
                return sum(setup.slots for setup in self._built_in if setup.webhook is None)
            case "webhook":
                return sum(setup.slots for setup in self._built_in if setup.webhook is not None)

    def kind_of(self, info: TaskInfo, *, alone: bool = False) -> RunnerKind:
        """The kind of child that runs jobs of a task. Without child processes nothing can run
        alone.
        """
        if info.name in BUILT_IN_TASKS:
            return "command" if info.name == COMMAND_TASK else "webhook"
        return "solo" if (alone or info.isolated) and self._make is ChildProcess else "python"

    def running(self) -> int:
        """Calls that have started, according to the children's boards."""
        return sum(len(child.process.board.running()) for child in self._living())

    @property
    def unready_s(self) -> float:
        """Seconds since a child was last able to run Python; 0 if the pool has no such child."""
        return monotonic() - self._ready_at if self._python else 0.0

    @property
    def is_ready(self) -> bool:
        """Whether a child can run Python now, if any is meant to."""
        return self._python is None or any(
            child.ready and child.process.setup.target is not None for child in self._living()
        )

    async def start(self, worker: str) -> None:
        """Start the children of the worker with this name."""
        for setup in self._built_in:
            await self._spawn(replace(setup, worker=worker), solo=False)
        if self._python is not None:
            self._python = replace(self._python, worker=worker)
            for _ in range(self._processes):
                if self._template is None:
                    await self._spawn(self._python, solo=False)
                else:
                    # The template imports the application first, however long that takes.
                    self._spawns.later(self._python, solo=False, after_s=0.0)

    def add(self, leased: Iterable[HeldLease]) -> None:
        """Queue newly leased jobs and dispatch what can start."""
        self.queue.add(leased)
        self.dispatch()

    def dispatch(self) -> None:
        """Give waiting jobs to children with room, one frame for each child."""
        if self._closing:
            return
        for kind in self.queue.waiting_kinds():
            children = [child for child in self._living() if child.process.kind == kind]
            if kind == "solo":
                self._dispatch_alone(children)
            else:
                self._dispatch_shared(kind, children)

    def cancel(self, held: HeldLease, *, lost: bool = False) -> None:
        """Stop this job if it is running. A lost job that has not started is just removed. If its
        attempt must end at once, its child is killed when it has not ended soon."""
        if lost and self.queue.remove(held):
            return
        for child in self._living():
            call = child.calls.get(held.call)
            if call is not None and held in call.held:
                call.cancelled = True
                if lost:
                    call.lost_at = monotonic()
                elif held.forced:
                    call.forced_at = monotonic()
                child.process.write([CancelCall(call.number, lost, held.forced)])

    def tick(self) -> None:
        """Called every TICK_S: enforce timeouts, end lost calls and idle solo children, recall
        calls that do not start."""
        now = monotonic()
        self.update_boards()
        for child in self._living():
            child.measure(TICK_S)
            if child.calls and (reason := reason_to_kill(child, now)):
                self._kill(child, reason)
            elif child.process.solo and not child.calls and now - child.idle_since > _SOLO_IDLE_S:
                child.finishing = True
                child.process.write([Finish()])
        self._report_deaths()
        if any(child.ready for child in self._living() if child.process.setup.target is not None):
            self._ready_at = now
        for child in children_to_recall(self._living(), now):
            child.process.write([Recall()])
        self.dispatch()

    def update_boards(self) -> None:
        """Write on the boards until when calls may begin: leases were renewed."""
        for child in self._living():
            child.update_board()

    def close(self) -> list[HeldLease]:
        """Start no more calls and return the jobs that wait here. Children give theirs back."""
        self._closing = True
        for child in self._living():
            child.process.write([Recall()])
        return self.queue.clear()

    async def stop(self, reason: str) -> None:
        """Kill every child and wait until the death of each was reported."""
        self._closing = True
        await self._spawns.stop()
        self._report_deaths()
        children = list(self._children.values())
        for child in children:
            self._kill(child, reason)
        for child in children:
            await child.process.wait_dead()
        if self._template is not None:
            self._template.end()
            self._sweep()

    def received(self, process: ChildProcess, answers: list[FromChild]) -> None:
        """Handle the answers of a child that arrived together."""
        child = self._children[process]
        ended: list[EndedBatch] = []
        for answer in answers:
            match answer:
                case CallsEnded(numbers=numbers, endings=endings):
                    ended += self._calls_ended(child, child.take_back(numbers), endings)
                case NoteUpdate(number=number, index=index):
                    call = child.calls.get(number)
                    if call is not None:
                        call.raise_timeout(answer.timeout_ms)
                        note = Note(
                            progress=answer.progress,
                            checkpoint=answer.checkpoint,
                            output=answer.output,
                        )
                        if note != _NO_NOTE:
                            call.held[index].add_note(note)
                case GivenBack(numbers=numbers):
                    ended += self._put_back(child.take_back(sorted(numbers)))
                case ChildReady(tasks=tasks, schedules=schedules):
                    self._child_ready(child, tasks, schedules)
                case ChildBroken(failure=failure):
                    self.broken = failure
                    self._listener.broken(failure)
        if ended:
            self._listener.ended(ended)
        self.dispatch()

    def died(self, process: ChildProcess) -> None:
        """A child is dead, and all its answers were received."""
        child = self._children.pop(process)
        if process.solo:
            for call in child.calls.values():
                if call.forced_at is None:
                    self.queue.record_alone(call.held[0].job.task, culprit=True)
        self._deaths.append((judge_calls(child), crash_failure(child)))
        self._report_deaths()
        if not self._closing:
            self._replace(child)
        self.dispatch()

    def _dispatch_shared(self, kind: RunnerKind, children: list[PooledChild]) -> None:
        """The child with the most room first, half of its room at a time, so that all fill
        evenly.
        """
        frames: dict[PooledChild, list[ToChild]] = {}
        while children:
            child = max(children, key=lambda one: one.room)
            room = child.room
            if room <= 0:
                break
            calls = self.queue.take(kind, room if len(children) == 1 else room // 2 + 1)
            if not calls:
                break
            frames.setdefault(child, []).extend(self._place(child, calls))
        for child, instructions in frames.items():
            child.process.write(instructions)

    def _dispatch_alone(self, children: list[PooledChild]) -> None:
        """One job for each child. Culprits occupy their process for long, or kill it: the others go
        first as soon as one culprit runs, and one process is reserved for them.
        """
        free = [child for child in children if child.room > 0]
        if not free:
            self._bar_isolated()
            self._spawn_solos(children)
        for child in free:
            self._bar_isolated()
            culprits = sum(task in self.queue.culprits for task in self._tasks_alone())
            if culprits >= self._solos_max - 1:
                held = self.queue.take_innocent()
            else:
                held = self.queue.take_alone(culprit=culprits == 0)
            if held is None:
                return
            child.process.write([*self._place(child, [[held]])])

    def _place(self, child: PooledChild, calls: list[list[HeldLease]]) -> list[ToChild]:
        first, self._next_number = self._next_number, self._next_number + len(calls)
        placed = child.place(calls, first, self._queue_of, self._gentle_tasks, on_sqs=self.on_sqs)
        return [*placed]

    @property
    def _solos_max(self) -> int:
        """The number of solo children: one more than may run culprits."""
        return 1 + self._alone_max

    def _bar_isolated(self) -> None:
        """Isolated tasks may be heavy: run few of them at once, however many processes there
        are."""
        isolated = frozenset(name for name, info in self.tasks.items() if info.isolated)
        count = sum(task in isolated for task in self._tasks_alone())
        self.queue.barred = isolated if count > self._isolated_max else frozenset()

    def _tasks_alone(self) -> list[str]:
        """The tasks of the calls that have a process for themselves."""
        solos = (child for child in self._living() if child.process.solo)
        return [call.held[0].job.task for child in solos for call in child.calls.values()]

    def _calls_ended(
        self, child: PooledChild, calls: list[PlacedCall], endings: tuple[Ending, ...]
    ) -> list[EndedBatch]:
        """The jobs of calls that ended alike, by their place in the call."""
        if child.process.solo:
            timed_out = any(map(is_timeout, endings))
            for call in calls:
                self.queue.record_alone(call.held[0].job.task, culprit=timed_out)
        ended = [
            EndedBatch([held], ending_for_job(held, ending))
            for call in calls
            if call.cancelled
            for held, ending in zip(call.held, endings, strict=True)
        ]
        others = [call.held for call in calls if not call.cancelled]
        if others:
            places = zip(zip(*others, strict=True), endings, strict=True)
            ended += [EndedBatch([*jobs], ending) for jobs, ending in places]
        return ended

    def _put_back(self, calls: list[PlacedCall]) -> list[EndedBatch]:
        """Calls that have not started: another child may run them, or their jobs end here."""
        ended: list[EndedBatch] = []
        for held in reversed([held for call in calls for held in call.held]):
            held.call = 0
            if held.cancel_known:
                ended.append(EndedBatch([held], AskedCancel("it was cancelled before it started")))
            elif self._closing or held.lost:
                ended.append(EndedBatch([held], AskedRelease("the worker is stopping")))
            else:
                self.queue.put_back(held)
        return ended

    def _child_ready(self, child: PooledChild, tasks: Iterable[TaskInfo], schedules: bytes) -> None:
        """The newest child has the latest list of tasks of its kind."""
        child.ready = True
        self._spawns.succeeded()
        known = {info.name: info for info in tasks}
        if child.process.setup.target is not None:
            self.broken = None
            self._ready_at = monotonic()
            known |= {name: info for name, info in self.tasks.items() if name in BUILT_IN_TASKS}
        else:
            known = {**self.tasks, **known}
            schedules = self.schedules
        if (known, schedules) != (self.tasks, self.schedules):
            self.tasks, self.schedules = known, schedules
            self._gentle_tasks = frozenset(name for name, info in known.items() if info.gentle)
            self.queue.batch_sizes = {
                name: info.batch for name, info in known.items() if info.batch > 1
            }
            self._listener.learned(self.tasks)

    def _living(self) -> list[PooledChild]:
        return [child for child in self._children.values() if child.process.status is None]

    def _kill(self, child: PooledChild, reason: str) -> None:
        if not child.kill_reason:
            child.kill_reason = reason
            child.process.kill()

    def _report_deaths(self) -> None:
        """End the jobs of dead children, once nothing that these left behind runs any more. That
        cannot be told from a child that is being forked, whose process id is not known yet: then
        they end after the fork."""
        if not self._deaths or (self._template is not None and self._template.busy):
            return
        self._sweep()
        deaths, self._deaths = self._deaths, []
        for death, failure in deaths:
            endings = death.ended + self._put_back(death.unstarted)
            if endings:
                self._listener.ended(endings)
            if death.crashed:
                self._listener.crashed(death.crashed, failure)

    def _sweep(self) -> None:
        """Kill the processes that dead children left behind."""
        # Without children for Python, a handler's own processes are this one's children.
        if self._make is ChildProcess:
            own = [process.pid for process in self._children]
            processes.sweep_strangers([*own, self._template.pid] if self._template else own)

    def _spawn_solos(self, children: list[PooledChild]) -> None:
        """Start one child for each job that waits to run alone, up to the bound."""
        if self._python is None:
            return
        coming = sum(not child.ready for child in children) + self._spawns.solos
        missing = min(
            self.queue.count_alone() - coming,
            self._solos_max - len(children) - self._spawns.solos,
        )
        after_s = max(0.0, self._next_solo_at - monotonic())
        for _ in range(missing):
            self._spawns.later(replace(self._python, slots=1), solo=True, after_s=after_s)

    def _replace(self, child: PooledChild) -> None:
        """Replace a dead child at once, or with growing delays while children die before they are
        ready. Solo children are started only when jobs wait for them.
        """
        delay_s = 0.0 if child.ready else self._spawns.failed()
        if child.process.solo:
            self._next_solo_at = monotonic() + delay_s
        else:
            self._spawns.later(child.process.setup, solo=False, after_s=delay_s)

    async def _spawn(self, setup: ChildSetup, solo: bool) -> None:
        process = self._make(setup, self, solo)
        if setup.target is not None:
            process.template = self._template
        child = self._children[process] = PooledChild(process)
        try:
            await process.start()
        except OSError as error:
            _log.error("cannot start a child process: %s", error)
            self._forget(process)
            self._replace(child)
        except asyncio.CancelledError:
            if not process.pid:
                self._forget(process)
            raise
        self._report_deaths()

    def _forget(self, process: ChildProcess) -> None:
        """Forget a child that was never started."""
        del self._children[process]
        process.board.close()
