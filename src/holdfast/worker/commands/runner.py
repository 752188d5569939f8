"""Runs commands in one process: starts them, reads their output, enforces timeouts, and kills the
processes they leave behind. This process is a subreaper: a process that a command detaches becomes
its child. Its session or the marker in its environment shows to which command it belongs, and it is
killed when that command's job ends. A process with neither may belong to any command that ran when
it was found, and is killed once the last of those has ended. Only one thread may run here, and no
other code may wait for children.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from holdfast.core.model import COMMAND_TASK
from holdfast.worker import processes
from holdfast.worker.child.attempt import failure_of, record_endings
from holdfast.worker.child.context import BoundedOutput
from holdfast.worker.child.runner import CallRunner
from holdfast.worker.commands import command
from holdfast.worker.wire import (
    AskedCancel,
    AskedRelease,
    Board,
    CallJob,
    ChildCalls,
    ChildSetup,
    Ending,
    FromChild,
    NoteUpdate,
    Raised,
)

if TYPE_CHECKING:
    from holdfast.tracing.spans import RunSpan

_START_S = 0.002
"""The longest time spent starting commands before the output of others is read."""
_GATHER_S = 0.01
"""While more commands wait, endings are sent in batches, which cost the supervisor and the store
far less. The supervisor sends this process enough calls ahead of time."""
_READ_BYTES = 65_536
_LIST_BYTES = 65_536
_DRAIN_READS_MAX = 64
_RESWEEP_S = 0.25
"""The kernel's list of children may miss one if another ends during the read: look again later."""
_LINGER_S = 5.0
"""The longest time that a job waits for its killed processes to end."""


Owner = TypeVar("Owner")


class CommandCall(NamedTuple):
    """A call of the task `command`, which has one job."""

    number: int
    job: CallJob
    timeout_ms: int | None


class CommandRunner(CallRunner):
    """Runs calls of the task `command`; no Python code of users runs here."""

    def __init__(
        self,
        setup: ChildSetup,
        board: Board,
        write: Callable[[list[FromChild]], None],
        finished: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(setup, board, write, finished)
        self._stdin = os.open(os.devnull, os.O_RDONLY)
        self._inherited = command.inherited(setup)
        self._pipes = PipeWatcher(self._loop, self._read)
        self._waiting: deque[CommandCall] = deque()
        self._free = list(range(setup.slots))
        self._running: dict[int, RunningCommand] = {}
        self._leaders: dict[int, RunningCommand] = {}
        self._orphans = CommandOrphans(setup.worker_id)
        self._starting = False
        self._reaping = False
        self._resweeping = False
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap_soon)

    def stop(self) -> None:
        self._waiting.clear()
        for running in list(self._running.values()):
            self._kill(running)

    def _add_calls(self, calls: ChildCalls) -> None:
        for number, jobs in enumerate(calls.calls, calls.first):
            if calls.task == COMMAND_TASK:
                self._waiting.append(CommandCall(number, jobs[0], calls.timeout_ms))
            else:
                unknown = AskedRelease(f"this process runs commands, not task {calls.task}")
                self._add_ended(number, (unknown,) * len(jobs))

    def _cancel(self, number: int, *, lost: bool, force: bool) -> None:
        running = self._running.get(number)
        if running is not None:
            running.cut_short(AskedCancel("it was cancelled while it ran"))
            if lost or force:
                self._kill(running)
            else:
                self._terminate(running)
            return
        for call in self._waiting:
            if call.number == number:
                self._waiting.remove(call)
                cancelled = AskedCancel("it was cancelled before it started")
                self._add_ended(number, (cancelled,))
                return

    def _give_back(self) -> list[int]:
        back = [call.number for call in self._waiting]
        self._waiting.clear()
        return back

    def _is_idle(self) -> bool:
        return not self._waiting and not self._running

    def _dispatch(self) -> None:
        if self._waiting and self._free and not self._starting:
            self._starting = True
            self._loop.call_soon(self._start_some)

    def _start_some(self) -> None:
        self._starting = False
        until = self._loop.time() + _START_S
        while self._waiting and self._free and self._may_begin():
            self._start_one()
            if self._loop.time() >= until:
                self._dispatch()
                break
        if not self._waiting:
            self._flush()

    def _start_one(self) -> None:
        call, slot = self._waiting.popleft(), self._free.pop()
        self._board.start(slot, call.number)
        running = RunningCommand(call, slot, self._setup.output_max)
        self._running[call.number] = running
        try:
            self._spawn(running)
        except command.CommandRefused as refusal:
            self._end(running, refusal.ending)
        except Exception as error:  # noqa: BLE001 (whatever it is, the slot must come back)
            self._end(running, Raised(failure_of(error)))

    def _spawn(self, running: RunningCommand) -> None:
        planned = command.plan(running.job, self._setup, self._inherited)
        try:
            source, sink = os.pipe()
        except OSError as error:
            raise command.scarce(error) from None
        try:
            running.started(command.start(planned, self._stdin, sink), source)
        except BaseException:
            os.close(source)
            raise
        finally:
            os.close(sink)
        self._leaders[running.pid] = running
        self._orphans.watch(running)
        os.set_blocking(source, False)
        self._pipes.watch(source, running)
        timeout_ms = running.call.timeout_ms
        if timeout_ms is not None:
            running.timer = self._loop.call_later(timeout_ms / 1000, self._time_out, running)

    def _read(self, running: RunningCommand) -> bool:
        """Read some output; False if there is no more now."""
        try:
            data = os.read(running.pipe, _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        if not data:
            self._close(running)
            return False
        running.output.write(data)
        if not running.has_note:
            running.has_note = True
            self._notes.add(running)
        return True

    def _close(self, running: RunningCommand) -> None:
        if running.pipe >= 0:
            self._pipes.close(running.pipe)
            running.pipe = -1

    def _time_out(self, running: RunningCommand) -> None:
        assert running.call.timeout_ms is not None
        running.cut_short(command.timed_out(running.call.timeout_ms))
        self._terminate(running)

    def _terminate(self, running: RunningCommand) -> None:
        """Send SIGTERM to all its processes, and kill them after the grace period."""
        if running.kill_timer is not None or running.status is not None:
            return
        running.kill_timer = self._loop.call_later(self._setup.grace_ms / 1000, self._kill, running)
        # Only once: many programs take a second SIGTERM to mean "at once, without cleaning up".
        others = [
            pid
            for pid in processes.descendants(running.pid)
            if (stat := processes.stat(pid)) is not None and stat.group != running.pid
        ]
        for number in (signal.SIGTERM, signal.SIGCONT):
            processes.kill_group(running.pid, number)
            for pid in others:
                processes.kill(pid, number)

    def _kill(self, running: RunningCommand) -> None:
        running.stop_kill_timer()
        if running.status is None:
            found = processes.descendants(running.pid)
            processes.kill_group(running.pid)
            for pid in found:
                processes.kill(pid)
        else:
            self._sweep()

    def _reap_soon(self) -> None:
        """A child ended: a command, or a process that one left behind. One pass finds all of
        them.
        """
        if not self._reaping:
            self._reaping = True
            self._loop.call_soon(self._reap)

    def _reap(self) -> None:
        self._reaping = False
        while True:
            with suppress(ChildProcessError):
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if info is not None:
                    self._record_end(info)
                    continue
            break
        self._sweep()
        self._sweep_later()

    def _record_end(self, info: os.waitid_result) -> None:
        pid = info.si_pid
        running = self._leaders.pop(pid, None)
        if running is not None:
            code = info.si_status
            running.ended(code if info.si_code == os.CLD_EXITED else -code)
            if running.kill_timer is None:
                # Until it is reaped its id cannot be reused, so this hits only its own group.
                processes.kill_group(pid)
        self._orphans.forget(pid)
        os.waitpid(pid, 0)

    def _sweep(self) -> None:
        """Kill orphans without a running command; end jobs whose processes are all gone."""
        killed = self._orphans.sweep(self._leaders)
        for running in [one for one in self._running.values() if one.status is not None]:
            if not self._orphans.of(running) or running.lingers(_LINGER_S):
                self._finish(running)
        if killed:
            self._sweep_later()

    def _sweep_later(self) -> None:
        if not self._resweeping:
            self._resweeping = True
            self._loop.call_later(_RESWEEP_S, self._resweep)

    def _resweep(self) -> None:
        self._resweeping = False
        self._sweep()

    def _finish(self, running: RunningCommand) -> None:
        for _ in range(_DRAIN_READS_MAX):
            if running.pipe < 0 or not self._read(running):
                break
        self._end(running, running.ending())

    def _end(self, running: RunningCommand, ending: Ending) -> None:
        self._close(running)
        running.end_timers()
        self._orphans.leave(running)
        output = running.take_output()
        if output is not None:
            ending = replace(ending, output=output)
        self._board.end(running.slot)
        self._free.append(running.slot)
        del self._running[running.call.number]
        self._add_ended(running.call.number, (ending,))
        self._flush_later(_GATHER_S if self._waiting else 0.0)
        self._dispatch()


class TracedCommandRunner(CommandRunner):
    """Runs each command inside a span, whose id it gets in an environment variable."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._runs: dict[int, RunSpan] = {}

    def _spawn(self, running: RunningCommand) -> None:
        from holdfast.tracing.spans import RunSpan

        run = RunSpan(COMMAND_TASK, (running.job,))
        self._runs[running.call.number] = run
        with run.inside():
            super()._spawn(running)

    def _end(self, running: RunningCommand, ending: Ending) -> None:
        run = self._runs.pop(running.call.number, None)
        if run is not None:
            record_endings(run, (ending,))
            run.end()
        super()._end(running, ending)


class RunningCommand:
    """A command that was started: its process, output and timers, and how it ended.

    `status` is None until its own process has ended; processes that it started may live on.
    `kill_timer` runs between SIGTERM and SIGKILL.
    """

    __slots__ = (
        "_cut_short_by",
        "_ended_at",
        "_output_sent",
        "_started_at",
        "call",
        "has_note",
        "job",
        "kill_timer",
        "marker",
        "output",
        "pid",
        "pipe",
        "slot",
        "status",
        "timer",
    )

    def __init__(self, call: CommandCall, slot: int, output_max: int) -> None:
        self.call: CommandCall = call
        self.slot: int = slot
        self.job: Final = call.job
        self.marker: tuple[bytes, bytes] = command.marker(self.job)
        self.pid: int = 0
        self.pipe: int = -1
        self.output: BoundedOutput = BoundedOutput(output_max)
        self.has_note: bool = False
        self.status: int | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.kill_timer: asyncio.TimerHandle | None = None
        self._started_at = time.monotonic()
        self._ended_at = 0.0
        self._output_sent = 0
        self._cut_short_by: Ending | None = None

    @property
    def living(self) -> bool:
        """True if it may still have processes: its own, or others in their grace period."""
        return self.status is None or self.kill_timer is not None

    def started(self, pid: int, pipe: int) -> None:
        """Its process runs, and writes to this pipe."""
        self.pid = pid
        self.pipe = pipe
        self._started_at = time.monotonic()

    def ended(self, status: int) -> None:
        """Its process ended with an exit code; a negative one is a signal."""
        self.status = status
        self._ended_at = time.monotonic()
        if self.timer is not None:
            self.timer.cancel()

    def lingers(self, seconds: float) -> bool:
        """True if one of its processes is left although it ended or was killed long ago."""
        return not self.living and time.monotonic() - self._ended_at > seconds

    def cut_short(self, ending: Ending) -> None:
        """Set the ending of its job, however its process ends; the first one counts."""
        if self._cut_short_by is None and self.status is None:
            self._cut_short_by = ending

    def ending(self) -> Ending:
        """The ending of its job."""
        assert self.status is not None
        if self._cut_short_by is not None:
            return self._cut_short_by
        duration_ms = round((self._ended_at - self._started_at) * 1000)
        return command.ending(self.status, self.output, duration_ms)

    def stop_kill_timer(self) -> None:
        if self.kill_timer is not None:
            self.kill_timer.cancel()
            self.kill_timer = None
            self._ended_at = time.monotonic()

    def end_timers(self) -> None:
        self.stop_kill_timer()
        if self.timer is not None:
            self.timer.cancel()

    def take_note(self) -> NoteUpdate | None:
        """The output so far, if it has grown since the last note."""
        self.has_note = False
        output = self.take_output()
        return None if output is None else NoteUpdate(self.call.number, output=output)

    def take_output(self) -> bytes | None:
        if self.output.size == self._output_sent:
            return None
        self._output_sent = self.output.size
        return self.output.value()


class CommandOrphans:
    """Orphaned processes, and the commands that each may belong to."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id.encode()
        self._owners: dict[int, frozenset[RunningCommand]] = {}
        self._by_session: dict[int, RunningCommand] = {}
        self._by_marker: dict[tuple[bytes, bytes], RunningCommand] = {}
        self._children = _Children()

    def __len__(self) -> int:
        return len(self._owners)

    def watch(self, running: RunningCommand) -> None:
        """Find orphans of this command until `leave`, when none is left."""
        self._by_session[running.pid] = running
        self._by_marker[running.marker] = running

    def leave(self, running: RunningCommand) -> None:
        if self._by_session.get(running.pid) is running:
            del self._by_session[running.pid]
        if self._by_marker.get(running.marker) is running:
            del self._by_marker[running.marker]

    def of(self, running: RunningCommand) -> list[int]:
        """The orphans that its job must wait for: its own, unless another living command may own
        them too."""
        return [
            pid
            for pid, owners in self._owners.items()
            if running in owners and not any(one.living for one in owners if one is not running)
        ]

    def forget(self, pid: int) -> None:
        """The process is dead and reaped."""
        self._owners.pop(pid, None)

    def sweep(self, leaders: Collection[int]) -> bool:
        """Find new orphans among the children of this process, and kill those whose commands have
        ended; True if there were any."""
        for pid in self._children.read():
            if pid not in leaders and pid not in self._owners:
                self._owners[pid] = self._find_owners(pid)
        ended = [
            pid for pid, owners in self._owners.items() if not any(one.living for one in owners)
        ]
        for pid in ended:
            for each in (*processes.descendants(pid), pid):
                processes.kill(each)
        return bool(ended)

    def _find_owners(self, pid: int) -> frozenset[RunningCommand]:
        stat = processes.stat(pid)
        if stat is not None and stat.session in self._by_session:
            return frozenset((self._by_session[stat.session],))
        environment = processes.environment(pid)
        if environment.get(b"HOLDFAST_WORKER_ID") == self._worker_id:
            id_ = environment.get(b"HOLDFAST_JOB_ID", b"")
            token = environment.get(b"HOLDFAST_LEASE_TOKEN", b"")
            owner = self._by_marker.get((id_, token))
            return frozenset(() if owner is None else (owner,))
        return frozenset(self._by_session.values())


class _Children:
    """The kernel's list of this process's children. The file stays open because it is read after
    each command. This process has one thread, which is the parent of all children.
    """

    def __init__(self) -> None:
        pid = os.getpid()
        self._file = os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY)

    def read(self) -> list[int]:
        text = b""
        while part := os.pread(self._file, _LIST_BYTES, len(text)):
            text += part
        return [int(pid) for pid in text.split()]


class PipeWatcher(Generic[Owner]):
    """Watches many pipes, each for the short life of a command. The loop watches them as one
    descriptor: adding and removing each there would cost several times as much.

    `readable` is called with the owner of a pipe that has data or was closed at its other end.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, readable: Callable[[Owner], object]
    ) -> None:
        self._readable = readable
        self._owners: dict[int, Owner] = {}
        self._epoll = select.epoll()
        loop.add_reader(self._epoll.fileno(), self._look)

    def watch(self, pipe: int, owner: Owner) -> None:
        self._epoll.register(pipe, select.EPOLLIN)
        self._owners[pipe] = owner

    def close(self, pipe: int) -> None:
        """Close a pipe, watched or not."""
        if self._owners.pop(pipe, None) is not None:
            self._epoll.unregister(pipe)
        os.close(pipe)

    def _look(self) -> None:
        for pipe, _ in self._epoll.poll(0):
            # Handling an earlier pipe may have closed this one.
            owner = self._owners.get(pipe)
            if owner is not None:
                self._readable(owner)
