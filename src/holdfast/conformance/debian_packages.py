"""Extracts Debian's packages of a program into a cache, without root.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from holdfast.conformance.private_server import ServiceUnavailable

# The packages that the system has: what they contain need not be extracted.
STATUS = "/var/lib/dpkg/status"


class PackagedProgram(NamedTuple):
    """A program that tests need, and how it is had from packages."""

    title: str
    """Its name in messages."""
    name: str
    """Its name in the cache."""
    remedy: str
    """What a person can do where the packages cannot be had."""
    choose: "Callable[[Apt], Sequence[str]]"
    """Lists the packages to extract."""
    finish: "Callable[[Path, Apt], None]"
    """Makes the extracted tree usable where it is, and proves that the program starts: a shared
    library may be missing, and then the tree must not be found later."""


def extract(program: PackagedProgram, cache: Path) -> Path:
    """The folder with the extracted packages. It has its name only since it was complete. Raises
    ServiceUnavailable."""
    tree = cache / f"{program.name}-{_system()}-{platform.machine()}"
    if tree.exists():
        return tree
    missing = [name for name in ("apt-get", "dpkg") if shutil.which(name) is None]
    if missing:
        raise ServiceUnavailable(
            f"{program.title} is not installed, and this system has no {' and no '.join(missing)} "
            f"to extract Debian's packages with. {program.remedy}"
        )
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache / f"{program.name}.lock") as guard:
            if not tree.exists():
                _extract(program, Apt(cache / f"{program.name}-apt", guard), tree)
    except (OSError, CommandFailed) as error:
        raise ServiceUnavailable(
            f"{program.title} is not installed, and its packages cannot be extracted: {error}. "
            f"{program.remedy}"
        ) from error
    return tree


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


class CommandFailed(Exception):
    """The text says which command failed, and how."""


class Apt:
    """apt and other commands, with a private state. Downloads stay there until the end, so that
    the next attempt goes on with them."""

    def __init__(self, state: Path, guard: IO[str]) -> None:
        self._state = state
        self._guard = guard
        self._files = state / "files"

    def download(self, choose: "Callable[[Apt], Sequence[str]]") -> list[Path]:
        """The files of the packages that are chosen."""
        for folder in ("lists/partial", "archives/partial", "files"):
            (self._state / folder).mkdir(parents=True, exist_ok=True)
        updated = self("apt-get", "update")
        try:
            names = choose(self)
            # Older versions may be there from an attempt that was killed: only these are current.
            listed = self("apt-get", "download", "--print-uris", *names)
            self("apt-get", "download", *names)
        except CommandFailed as error:
            # A source that cannot be reached is only a warning of the update.
            warnings = re.findall(r"(?m)^[WE]: .*", updated)
            raise CommandFailed("; ".join([str(error), *warnings[:1]])) from None
        files = re.findall(r"(?m)^'[^']*' (\S+\.deb) ", listed)
        return [self._files / file for file in files]

    def remove(self) -> None:
        """Remove the state and the downloads."""
        shutil.rmtree(self._state, ignore_errors=True)

    def __call__(self, program: str, *arguments: str) -> str:
        """The output of apt-get or apt-cache. Raises CommandFailed."""
        options = {
            "Dir::State": self._state,
            "Dir::State::status": STATUS,
            "Dir::Cache": self._state,
            "Debug::NoLocking": 1,
            "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
            "Acquire::Retries": 1,
            "Acquire::http::Timeout": 15,
            "Acquire::https::Timeout": 15,
        }
        flags = [text for name, value in options.items() for text in ("-o", f"{name}={value}")]
        return self.call([program, *flags, "-q", *arguments])

    def call(self, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> str:
        """The output of a command. Raises CommandFailed."""
        result = subprocess.run(
            command,
            cwd=self._files,
            env={**os.environ, **(env or {}), "LC_ALL": "C"},
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
            raise CommandFailed(f"{program} ... {last} failed: {output}")
        return result.stdout


def _extract(program: PackagedProgram, apt: Apt, tree: Path) -> None:
    packages = apt.download(program.choose)
    draft = tree.with_name(tree.name + ".new")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        for package in packages:
            apt.call(["dpkg", "-x", package, draft])
        program.finish(draft, apt)
        draft.rename(tree)
    finally:
        # Also after a failure: apt keeps a file of the right size, whatever is in it.
        apt.remove()


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
