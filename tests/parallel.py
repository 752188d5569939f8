"""Runs tests in parallel: `pytest -p tests.parallel --workers 4` collects once, then forks workers.

A worker that starts as a process of its own, as those of pytest-xdist do, imports and collects all
17,000 tests again. That takes 15 seconds of CPU time for each worker, and no test needs it.

Workers take chunks: tests of one module, so that they share its fixtures. Chunks of long tests are
first and chunks of short ones last, so that all workers end at about the same time. The tests in a
browser are one chunk, for a worker that takes no other: they share an event loop with the browser.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.config import create_terminal_writer

from holdfast.core.text import counted

_BROWSER = "tests/dashboard"
_LONG = (
    "tests/bench",
    "tests/crash",
    "tests/deploy",
    "tests/docs",
    "tests/engines/rabbitmq/test_connection.py",
    "tests/engines/sqlite/test_cost.py",
    "tests/engines/sqlite/test_database.py",
    "tests/engines/test_machine.py",
    "tests/examples",
    "tests/fleet",
    "tests/pythons",
    "tests/server/http/test_openapi.py",
    "tests/server/rest/test_alerts.py",
    "tests/testing",
    "tests/unit/test_layering.py",
    "tests/unit/test_tidy.py",
    "tests/walk",
)
_SHORT = ("contract.py", "tests/unit")
_CHUNK = 50

Chunk = list[int]
"""Indices of the tests in `session.items`."""


class Hooks:
    """The hooks of this plugin."""

    @pytest.hookspec
    def pytest_workers_forked(self, config: pytest.Config) -> None:
        """Called in the process that collected the tests, once it has forked its workers. Before
        that it must have no threads."""


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(Hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--workers",
        type=int,
        default=0,
        metavar="N",
        help="run the tests in N forked processes [default: in this one]",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    workers: int = session.config.getoption("workers")
    option = session.config.option
    alone = workers < 1 or option.collectonly or option.usepdb or option.trace
    if alone or session.testsfailed:
        # pytest's own loop runs them here, or reports the errors of the collection.
        return None
    _Workers(session).run(workers)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


def chunks(names: Sequence[str]) -> tuple[list[Chunk], Chunk]:
    """The chunks of the tests with these names, in the order in which workers take them, and that
    of the tests in a browser."""
    found: dict[int, list[Chunk]] = {0: [], 1: [], 2: []}
    browser: Chunk = []
    for path, group in groupby(range(len(names)), key=lambda at: names[at].partition("::")[0]):
        tests = list(group)
        if path.startswith(_BROWSER):
            browser += tests
            continue
        found[_rank(path)] += [tests[at : at + _CHUNK] for at in range(0, len(tests), _CHUNK)]
    return [*found[0], *found[1], *found[2]], browser


def _rank(path: str) -> int:
    if path.startswith(_LONG):
        return 0
    return 2 if path.startswith(_SHORT) or path.endswith(_SHORT) else 1


@dataclass(slots=True, kw_only=True)
class _Worker:
    """A forked process, as the process that collected the tests knows it."""

    name: str
    pid: int
    pidfd: int
    """Readable once the process has ended, even if another one holds its end of the connection."""
    connection: Connection
    queue: deque[Chunk]
    left: deque[int] = field(default_factory=deque)
    """The tests that it took and has not finished."""


class _Workers:
    """Gives chunks to the workers, and their reports to pytest."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._config = session.config
        self._running: list[_Worker] = []

    def run(self, count: int) -> None:
        """Run all tests; returns when all workers have ended."""
        reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            # The path of a file is of no use before tests of other files.
            reporter.showfspath = False
        ordered, browser = chunks([item.nodeid for item in self._session.items])
        queues = [deque(ordered), deque([browser] if browser else [])]
        try:
            for number in range(min(count, len(ordered))):
                self._start(f"w{number}", queues[0])
            if browser:
                self._start("browser", queues[1])
            self._config.hook.pytest_workers_forked(config=self._config)
            while self._running and not self._is_stopping():
                self._serve_all()
        finally:
            self._stop()
        missing = sum(len(chunk) for queue in queues for chunk in queue)
        if missing and not self._is_stopping():
            self._session.shouldfail = f"{counted(missing, 'test')} did not run: no worker is left"

    def _start(self, name: str, queue: deque[Chunk]) -> None:
        assert threading.active_count() == 1, "a process with threads cannot be forked"
        folders: Any = self._config._tmp_path_factory  # type: ignore[attr-defined]
        folder: Path = folders.getbasetemp() / name
        ours, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            others = [ours, *(worker.connection for worker in self._running)]
            _work(self._session, theirs, others, folder)
        theirs.close()
        self._running.append(
            _Worker(name=name, pid=pid, pidfd=os.pidfd_open(pid), connection=ours, queue=queue)
        )

    def _serve_all(self) -> None:
        connections: list[Any] = [worker.connection for worker in self._running]
        ready = wait([*connections, *(worker.pidfd for worker in self._running)])
        for worker in list(self._running):
            if worker.connection in ready:
                self._serve(worker)
            elif worker.pidfd in ready:
                self._end(worker)

    def _serve(self, worker: _Worker) -> None:
        """Take one message of a worker: the reports of a test, None for the next chunk, or why the
        whole run must end."""
        try:
            message: list[dict[str, Any]] | str | None = worker.connection.recv()
        except (EOFError, OSError):
            self._end(worker)
            return
        if message is None:
            with contextlib.suppress(OSError):
                worker.connection.send(self._next(worker))
            return
        if isinstance(message, str):
            self._session.shouldstop = message
            return
        worker.left.popleft()
        hook = self._config.hook
        for data in message:
            if "warning" in data:
                hook.pytest_warning_recorded.call_historic(kwargs=_warning(**data))
            else:
                report = hook.pytest_report_from_serializable(config=self._config, data=data)
                hook.pytest_runtest_logreport(report=report)

    def _next(self, worker: _Worker) -> Chunk | None:
        if not worker.queue:
            return None
        chunk = worker.queue.popleft()
        worker.left += chunk
        return chunk

    def _is_stopping(self) -> bool:
        return bool(self._session.shouldfail or self._session.shouldstop)

    def _end(self, worker: _Worker) -> None:
        """A worker has ended. If it was running a test, that one failed, and others run the
        rest."""
        status = self._reap(worker)
        if not worker.left:
            if status != 0:
                self._session.shouldfail = f"worker {worker.name} ended with status {status}"
            return
        item = self._session.items[worker.left.popleft()]
        why = f"worker {worker.name} ended with status {status} during this test"
        failed = pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")
        self._config.hook.pytest_runtest_logreport(report=failed)
        if worker.left:
            worker.queue.appendleft([*worker.left])

    def _reap(self, worker: _Worker) -> int:
        self._running.remove(worker)
        worker.connection.close()
        os.close(worker.pidfd)
        return os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])

    def _stop(self) -> None:
        """Interrupt the workers that are left, wait until they have torn down their fixtures, and
        end what their tests have started. Another interrupt kills them."""
        for worker in self._running:
            worker.connection.close()
            # A stopped process must go on to be interrupted.
            for number in (signal.SIGINT, signal.SIGCONT):
                os.kill(worker.pid, number)
        while self._running:
            worker = self._running[0]
            try:
                wait([worker.pidfd])
            except KeyboardInterrupt:
                for each in self._running:
                    os.kill(each.pid, signal.SIGKILL)
            self._reap(worker)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGTERM)


def _warning(warning: str, when: str, nodeid: str, location: Any) -> dict[str, Any]:
    """The arguments of pytest_warning_recorded."""
    message = warnings.WarningMessage(
        pytest.PytestWarning(warning), pytest.PytestWarning, location[0] if location else "", 0
    )
    return {"warning_message": message, "when": when, "nodeid": nodeid, "location": location}


def _work(
    session: pytest.Session, connection: Connection, others: list[Connection], folder: Path
) -> NoReturn:
    """The life of a worker. It ends without the hooks that end a session, which the process that
    collected the tests calls once for all of them."""
    status = 1
    try:
        try:
            # Ctrl-C reaches that process alone, which passes it on.
            os.setpgid(0, 0)
            for other in others:
                other.close()
            reports = _prepare(session.config, connection, folder)
            _run(session, connection, reports)
            status = 0
        finally:
            # One interrupt ends the tests; the next one must not end what cleans up after them.
            with contextlib.suppress(KeyboardInterrupt):
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            session._setupstate.teardown_exact(None)
    except pytest.exit.Exception as reason:
        connection.send(f"{reason}")
    except (KeyboardInterrupt, EOFError, ConnectionError):
        pass
    except BaseException:  # noqa: BLE001 (the status tells of it)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _prepare(config: pytest.Config, connection: Connection, folder: Path) -> _Reports:
    folder.mkdir(mode=0o700)
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    # The files that hold what is captured must not be shared.
    capture.stop_global_capturing()
    # A worker has no terminal: a debugger must end instead of waiting for input.
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(_Terminal(config), "terminalreporter")
    capture.start_global_capturing()
    capture.suspend_global_capture()
    reports = _Reports(config, connection)
    config.pluginmanager.register(reports)
    # Warnings of the collection are repeated for a new plugin.
    reports.found.clear()
    return reports


def _run(session: pytest.Session, connection: Connection, reports: _Reports) -> None:
    tests = _tests(session, connection)
    item = next(tests, None)
    while item is not None:
        # Fixtures that the next test needs as well are kept.
        following = next(tests, None)
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        reports.send()
        if session.shouldfail or session.shouldstop:
            return
        item = following


def _tests(session: pytest.Session, connection: Connection) -> Iterator[pytest.Item]:
    while True:
        connection.send(None)
        chunk: Chunk | None = connection.recv()
        if chunk is None:
            return
        for at in chunk:
            yield session.items[at]


class _Terminal:
    """The terminal of a worker, for plugins that write to it: pytest-timeout writes the stacks of a
    test that takes too long."""

    def __init__(self, config: pytest.Config) -> None:
        file = os.fdopen(os.dup(2), "w", buffering=1)
        self._tw = create_terminal_writer(config, file)


class _Reports:
    """A plugin of a worker: the reports and warnings of a test."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection
        self.found: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self.found.append(hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        text = f"{warning_message.category.__name__}: {warning_message.message}"
        self.found.append({"warning": text, "when": when, "nodeid": nodeid, "location": location})

    def send(self) -> None:
        """Send all that was found, after a test."""
        self._connection.send(self.found)
        self.found = []
