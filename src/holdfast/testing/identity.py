"""Decides as whom a private PostgreSQL runs: it refuses root, so root becomes somebody else for it.

It changes nothing for other users, and never anything outside the server's own directory.
"""

import grp
import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_NAMESPACE = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")


@dataclass(frozen=True, slots=True)
class Identity:
    """A command prefix, or a user and group to become."""

    prefix: tuple[str, ...] = ()
    user: str | None = None
    group: str | None = None

    def admit(self, directory: Path, binaries: Path) -> Path:
        """Give it the server's directory, and return binaries that it can reach."""
        if self.user is None:
            return binaries
        # The wheel may lie in a private home. Its programs find their libraries beside it.
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
        # Inside, the user is 1000; outside it is still root, which may read private homes.
        return Identity(prefix=_NAMESPACE)
    nobody = pwd.getpwnam("nobody")
    return Identity(user=nobody.pw_name, group=grp.getgrgid(nobody.pw_gid).gr_name)


def _namespace_works() -> bool:
    """Containers often forbid user namespaces, and small systems have no such unshare."""
    if shutil.which(_NAMESPACE[0]) is None:
        return False
    return subprocess.run([*_NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
