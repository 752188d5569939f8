"""Commands in one process: started, read, timed, and gone with all they left behind.

The process is a subreaper: what a command detaches becomes its child, and is killed when the
command's job ends. Only one thread may run here, and nobody else may wait for children.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from holdfast.worker import command, processes
from holdfast.worker.board import Board
from holdfast.worker.failures import failure_of
from holdfast.worker.hands import Hands
from holdfast.worker.orphans import Orphans
from holdfast.worker.pipes import Pipes
from holdfast.worker.running import Running
from holdfast.worker.wire import (
    AskedCancel,
    AskedRelease,
    Call,
    ChildSetup,
    Ended,
    Ending,
    Raised,
    Up,
)

_START_S = 0.002
"""How long commands are started in a row: others want to be read meanwhile."""
_GATHER_S = 0.01
"""While more commands wait in line, endings are told in batches, which cost the supervisor and the
store far less. It gave this process twice as much ahead."""
_READ_BYTES = 65_536
_DRAIN_READS_MAX = 64
_RESWEEP_S = 0.25
"""The kernel's list of children may miss one when another ends meanwhile: so look again later."""
_LINGER_S = 5.0
"""How long a killed process may take to go, before its job ends without waiting for it."""


class Commands(Hands):
    """Runs calls of the one task `command`, which holds no handler and no Python of a user's."""

    def __init__(
        self,
        setup: ChildSetup,
        board: Board,
        say: Callable[[list[Up]], None],
        finished: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(setup, board, say, finished)
        self._stdin = os.open(os.devnull, os.O_RDONLY)
        self._inherited = command.inherited(setup)
        self._pipes = Pipes(self._loop, self._read)
        self._waiting: deque[Call] = deque()
        self._free = list(range(setup.slots))
        self._running: dict[int, Running] = {}
        self._leaders: dict[int, Running] = {}
        self._orphans = Orphans(setup.worker_id)
        self._starting = False
        self._reaping = False
        self._resweeping = False
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap_soon)

    def stop(self) -> None:
        self._waiting.clear()
        for running in list(self._running.values()):
            self._kill(running)

    def _take_call(self, call: Call) -> None:
        if call.task != "command":
            unknown = AskedRelease(f"this process runs commands, not task {call.task}")
            self._words.append(Ended(call.number, (unknown,) * len(call.jobs)))
            return
        self._waiting.append(call)

    def _cancel(self, number: int, *, lost: bool) -> None:
        running = self._running.get(number)
        if running is not None:
            running.cut_short(AskedCancel("it was cancelled while it ran"))
            if lost:
                self._kill(running)
            else:
                self._terminate(running)
            return
        for call in self._waiting:
            if call.number == number:
                self._waiting.remove(call)
                cancelled = AskedCancel("it was cancelled before it started")
                self._words.append(Ended(number, (cancelled,)))
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
        running = Running(call, slot, self._setup.output_max)
        self._running[call.number] = running
        try:
            self._spawn(running)
        except command.Refusal as refusal:
            self._end(running, refusal.ending)
        except Exception as error:  # noqa: BLE001 (whatever it is, the slot must come back)
            self._end(running, Raised(failure_of(error)))

    def _spawn(self, running: Running) -> None:
        what = command.plan(running.job, self._setup, self._inherited)
        try:
            source, sink = os.pipe()
        except OSError as error:
            raise command.scarce(error) from None
        try:
            running.started(command.start(what, self._stdin, sink), source)
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

    def _read(self, running: Running) -> bool:
        """Whether there may be more."""
        try:
            data = os.read(running.pipe, _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        if not data:
            self._close(running)
            return False
        running.output.write(data)
        if not running.speaking:
            running.speaking = True
            self._teller.hear(running)
        return True

    def _close(self, running: Running) -> None:
        if running.pipe >= 0:
            self._pipes.close(running.pipe)
            running.pipe = -1

    def _time_out(self, running: Running) -> None:
        assert running.call.timeout_ms is not None
        running.cut_short(command.timed_out(running.call.timeout_ms))
        self._terminate(running)

    def _terminate(self, running: Running) -> None:
        """Ask all its processes to end, and kill them if they have not when the grace is over."""
        if running.mercy is not None or running.status is not None:
            return
        running.mercy = self._loop.call_later(self._setup.grace_ms / 1000, self._kill, running)
        # Each is asked once: to many programs a second request means "at once, untidily".
        others = [
            pid
            for pid in processes.descendants(running.pid)
            if (stat := processes.stat(pid)) is not None and stat.group != running.pid
        ]
        for number in (signal.SIGTERM, signal.SIGCONT):
            processes.kill_group(running.pid, number)
            for pid in others:
                processes.kill(pid, number)

    def _kill(self, running: Running) -> None:
        running.end_mercy()
        if running.status is None:
            found = processes.descendants(running.pid)
            processes.kill_group(running.pid)
            for pid in found:
                processes.kill(pid)
        else:
            self._sweep()

    def _reap_soon(self) -> None:
        """Some child ended: a command, or what one left behind. One look finds all of them."""
        if not self._reaping:
            self._reaping = True
            self._loop.call_soon(self._reap)

    def _reap(self) -> None:
        self._reaping = False
        while True:
            with suppress(ChildProcessError):
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if info is not None:
                    self._bury(info)
                    continue
            break
        self._sweep()
        self._sweep_later()

    def _bury(self, info: os.waitid_result) -> None:
        pid = info.si_pid
        running = self._leaders.pop(pid, None)
        if running is not None:
            code = info.si_status
            running.ended(code if info.si_code == os.CLD_EXITED else -code)
            if running.mercy is None:
                # Until it is buried its number cannot be another's, so this hits its group alone.
                processes.kill_group(pid)
        self._orphans.forget(pid)
        os.waitpid(pid, 0)

    def _sweep(self) -> None:
        """Kill what belongs to no running command; end the jobs of which nothing is left."""
        doomed = self._orphans.sweep(self._leaders)
        for running in [one for one in self._running.values() if one.status is not None]:
            if not self._orphans.of(running) or running.lingers(_LINGER_S):
                self._finish(running)
        if doomed:
            self._sweep_later()

    def _sweep_later(self) -> None:
        if not self._resweeping:
            self._resweeping = True
            self._loop.call_later(_RESWEEP_S, self._resweep)

    def _resweep(self) -> None:
        self._resweeping = False
        self._sweep()

    def _finish(self, running: Running) -> None:
        for _ in range(_DRAIN_READS_MAX):
            if running.pipe < 0 or not self._read(running):
                break
        self._end(running, running.ending())

    def _end(self, running: Running, ending: Ending) -> None:
        self._close(running)
        running.end_timers()
        self._orphans.leave(running)
        output = running.take_output()
        if output is not None:
            ending = replace(ending, output=output)
        self._board.end(running.slot)
        self._free.append(running.slot)
        del self._running[running.call.number]
        self._words.append(Ended(running.call.number, (ending,)))
        if not self._flushing:
            self._flushing = True
            self._loop.call_later(_GATHER_S if self._waiting else 0.0, self._flush)
        self._dispatch()
