"""PrivateRedis: a Redis server with Debian's configuration, for one experiment."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

from holdfast.conformance import debian_packages
from holdfast.conformance.debian_packages import Apt, PackagedProgram, cache_folder
from holdfast.conformance.private_server import PrivateServer

PACKAGES = ("redis-server", "redis-tools", "liblzf1", "libjemalloc2")


class PrivateRedis(PrivateServer):
    """One server in a directory of its own; `url` stays the same across `kill` and `restart`."""

    title = "Redis"
    graceful = signal.SIGTERM
    immediate = signal.SIGKILL
    transient = ("Address already in use",)

    def __init__(self) -> None:
        super().__init__()
        self._tree = _find_tree()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def _create(self, directory: Path) -> None:
        """Debian's file, without the folders of the system."""
        text = (self._tree / "etc/redis/redis.conf").read_text()
        lines = [line for line in text.splitlines() if not line.startswith(("dir ", "logfile "))]
        (directory / "redis.conf").write_text("\n".join(lines) + "\n")

    def _command(self, directory: Path) -> list[str]:
        options = {
            "bind": "127.0.0.1",
            "port": str(self._port),
            "daemonize": "no",
            "dir": str(directory),
            "pidfile": str(directory / "pid"),
        }
        flags = [text for name, value in options.items() for text in (f"--{name}", value)]
        return [str(self._tree / "usr/bin/redis-server"), str(directory / "redis.conf"), *flags]

    def _environment(self, directory: Path) -> Mapping[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), **_libraries(self._tree)}

    def _is_ready(self, directory: Path) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), 5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(5) == b"+PONG"
        except OSError:
            return False


def _find_tree() -> Path:
    """The root below which Redis is installed, or Debian's packages are extracted."""
    if shutil.which("redis-server") and Path("/etc/redis/redis.conf").exists():
        return Path("/")
    return debian_packages.extract(_REDIS, cache_folder())


def _libraries(tree: Path) -> dict[str, str]:
    folders = [str(folder) for folder in (tree / "usr/lib").glob("*-linux-gnu")]
    return {} if tree == Path("/") else {"LD_LIBRARY_PATH": os.pathsep.join(folders)}


def _finish(tree: Path, apt: Apt) -> None:
    apt.call([tree / "usr/bin/redis-server", "--version"], _libraries(tree))


_REDIS = PackagedProgram(
    title="Redis",
    name="redis",
    remedy="Install the package redis-server, whose service need not run.",
    choose=lambda _apt: PACKAGES,
    finish=_finish,
)
