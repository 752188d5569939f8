"""Finds RabbitMQ: an installed one, else Debian's packages extracted into a cache, without root.

Nothing is installed and no service is started. The packages come from the machine's own apt
sources, with a private apt state. Processes that need them at the same time share one download; a
killed one leaves nothing that the next trusts.
"""

import contextlib
import fcntl
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from holdfast.conformance.private_server import ServiceUnavailable

INSTALLED = Path("/usr/lib/rabbitmq/bin")
ERLANG = Path("/usr/lib/erlang/bin")
REMEDY = "Install the package rabbitmq-server, whose service need not run."


class RabbitPrograms(NamedTuple):
    """`server` is the script that starts RabbitMQ, `erlang` the folder of erl and epmd."""

    server: Path
    erlang: Path


def find_programs(cache: Path | None = None) -> RabbitPrograms:
    """The programs of RabbitMQ; raises ServiceUnavailable with the reason where there are none."""
    if (INSTALLED / "rabbitmq-server").exists() and (ERLANG / "erl_call").exists():
        return RabbitPrograms(INSTALLED / "rabbitmq-server", ERLANG)
    tree = extract(cache or cache_folder()) / "usr" / "lib"
    return RabbitPrograms(tree / "rabbitmq" / "bin" / "rabbitmq-server", tree / "erlang" / "bin")


def cache_folder() -> Path:
    """`.hf/cache` of the repository, shared by its worktrees; the user's cache elsewhere."""
    root = Path(__file__).resolve().parents[3]
    if (root / "hf").is_file():
        return main_worktree(root) / ".hf" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"


def main_worktree(root: Path) -> Path:
    """The worktree that owns the repository's `.git` folder; elsewhere `.git` is a file."""
    link = root / ".git"
    if link.is_file():
        # gitdir: MAIN/.git/worktrees/NAME
        git = (root / link.read_text().removeprefix("gitdir:").strip()).resolve()
        if git.parent.name == "worktrees" and (git.parents[2] / "hf").is_file():
            return git.parents[2]
    return root


def extract(cache: Path) -> Path:
    """The folder with the extracted packages. It has its name only since it was complete."""
    tree = cache / f"rabbitmq-{_system()}-{platform.machine()}"
    if tree.exists():
        return tree
    missing = [name for name in ("apt-get", "dpkg") if shutil.which(name) is None]
    if missing:
        raise ServiceUnavailable(
            f"RabbitMQ is not installed, and this system has no {' and no '.join(missing)} to "
            f"extract Debian's packages with. {REMEDY}"
        )
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache / "rabbitmq.lock") as guard:
            if not tree.exists():
                _Extraction(cache, guard).run(tree)
    except (OSError, _CommandFailed) as error:
        raise ServiceUnavailable(
            f"RabbitMQ is not installed, and its packages cannot be extracted: {error}. {REMEDY}"
        ) from error
    return tree


def _system() -> str:
    """Such as debian-12: another release has other libraries."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return "unknown"
    return re.sub(r"[^a-z0-9.-]", "_", f"{release['ID']}-{release.get('VERSION_ID', 'rolling')}")


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[IO[str]]:
    """Hold a file lock. The system releases it if this process and those it started are killed."""
    with path.open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield guard


class _CommandFailed(Exception):
    """The text says which command failed, and how."""


class _Extraction:
    """Downloads stay in the cache until the end, so that the next attempt goes on with them."""

    def __init__(self, cache: Path, guard: IO[str]) -> None:
        self._guard = guard
        self._state = cache / "apt"
        self._files = self._state / "files"

    def run(self, tree: Path) -> None:
        for folder in ("lists/partial", "archives/partial", "files"):
            (self._state / folder).mkdir(parents=True, exist_ok=True)
        packages = self._download()
        draft = tree.with_name(tree.name + ".new")
        shutil.rmtree(draft, ignore_errors=True)
        try:
            for package in packages:
                self._call(["dpkg", "-x", package, draft])
            erl = draft / "usr/lib/erlang/bin/erl"
            _make_movable(erl)
            # The shared libraries that it needs may be missing: then it must not be found later.
            self._call([erl, "-noinput", "-eval", "ok = crypto:start(), halt()."])
            draft.rename(tree)
        finally:
            # Also after a failure: apt keeps a file of the right size, whatever is in it.
            shutil.rmtree(self._state, ignore_errors=True)

    def _download(self) -> list[Path]:
        updated = self._apt("apt-get", "update")
        try:
            names = self._needed()
            # Older versions may be there from an attempt that was killed: only these are current.
            listed = self._apt("apt-get", "download", "--print-uris", *names)
            self._apt("apt-get", "download", *names)
        except _CommandFailed as error:
            # A source that cannot be reached is only a warning of the update.
            warnings = re.findall(r"(?m)^[WE]: .*", updated)
            raise _CommandFailed("; ".join([str(error), *warnings[:1]])) from None
        files = re.findall(r"(?m)^'[^']*' (\S+\.deb) ", listed)
        return [self._files / file for file in files]

    def _needed(self) -> list[str]:
        """RabbitMQ and all of Erlang that it needs. What is beyond that is on every system, or it
        is for the service, which is not started."""
        kinds = "recommends suggests conflicts breaks replaces enhances".split()
        options = [f"--no-{kind}" for kind in kinds]
        found = self._apt("apt-cache", "depends", "--recurse", *options, "rabbitmq-server")
        return sorted(set(re.findall(r"(?m)^(?:erlang-[a-z0-9-]+|rabbitmq-server)$", found)))

    def _apt(self, program: str, *arguments: str) -> str:
        options = {
            "Dir::State": self._state,
            "Dir::State::status": "/var/lib/dpkg/status",
            "Dir::Cache": self._state,
            "Debug::NoLocking": 1,
            "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
            "Acquire::Retries": 1,
            "Acquire::http::Timeout": 15,
            "Acquire::https::Timeout": 15,
        }
        flags = [text for name, value in options.items() for text in ("-o", f"{name}={value}")]
        return self._call([program, *flags, "-q", *arguments])

    def _call(self, command: Sequence[str | Path]) -> str:
        result = subprocess.run(
            command,
            cwd=self._files,
            env={**os.environ, "LC_ALL": "C"},
            # The child holds the lock too: if only this process is killed, the next one waits.
            pass_fds=[self._guard.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if result.returncode != 0:
            program, *_, last = map(str, command)
            output = " ".join(result.stdout.split())[-1000:]
            raise _CommandFailed(f"{program} ... {last} failed: {output}")
        return result.stdout


def _make_movable(script: Path) -> None:
    """Debian's erl names its folder; let it look where it is."""
    found = '"$(dirname "$(dirname "$(readlink -f "$0")")")"'
    script.write_text(script.read_text().replace("ROOTDIR=/usr/lib/erlang", f"ROOTDIR={found}"))
