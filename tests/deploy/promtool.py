"""Finds promtool, which checks rules for Prometheus: the one on PATH, else Debian's package
extracted into `.hf/cache`, without root."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from holdfast.conformance import debian_packages
from holdfast.conformance.debian_packages import Apt, PackagedProgram, cache_folder

PROGRAM = "usr/bin/promtool"


def find_promtool() -> Path:
    """Raises ServiceUnavailable with the reason where there is none."""
    found = shutil.which("promtool")
    if found is not None:
        return Path(found)
    return debian_packages.extract(_PROMTOOL, cache_folder()) / PROGRAM


def _choose(_apt: Apt) -> Sequence[str]:
    """It is one program that needs no other package."""
    return ["prometheus"]


def _finish(tree: Path, apt: Apt) -> None:
    apt.call([tree / PROGRAM, "--version"])
    # The server itself is not needed, and is as large.
    (tree / "usr" / "bin" / "prometheus").unlink()


_PROMTOOL = PackagedProgram(
    title="promtool",
    name="promtool",
    remedy="Install Prometheus.",
    choose=_choose,
    finish=_finish,
)
