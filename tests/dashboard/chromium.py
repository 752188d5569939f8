"""Finds Chromium: the one that `HOLDFAST_CHROMIUM` names, else one on PATH, else Debian's packages
extracted into `.hf/cache`, without root."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from holdfast.conformance import debian_packages
from holdfast.conformance.debian_packages import Apt, PackagedProgram, cache_folder
from holdfast.conformance.private_server import ServiceUnavailable

# The first has no window: it is the same browser, and a page opens in it in a third of the time.
ON_PATH = ("chromium-headless-shell", "chromium", "google-chrome")
PACKAGES = ("chromium-headless-shell", "fonts-dejavu-core", "fonts-inter")
PROGRAM = "usr/lib/chromium/chromium-headless-shell"
FONTS = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir prefix="relative">usr/share/fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
  <alias><family>system-ui</family><prefer><family>Inter</family></prefer></alias>
  <alias><family>sans-serif</family><prefer><family>Inter</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""


class Chromium(NamedTuple):
    """A browser, and the environment variables that it needs."""

    program: Path
    environment: Mapping[str, str]


def given_chromium() -> Chromium | None:
    """The browser that the environment names. Raises ServiceUnavailable if it is none."""
    given = os.environ.get("HOLDFAST_CHROMIUM")
    if not given:
        return None
    _refuse_unless_browser(given)
    return Chromium(Path(given), {})


def find_chromium(cache: Path | None = None) -> Chromium:
    """One on PATH or in the cache. Raises ServiceUnavailable with the reason where there is
    none."""
    found = next(filter(None, map(shutil.which, ON_PATH)), None)
    if found is not None:
        return Chromium(Path(found), {})
    tree = debian_packages.extract(_CHROMIUM, cache or cache_folder())
    return Chromium(tree / PROGRAM, _environment(tree))


def _refuse_unless_browser(program: str) -> None:
    try:
        shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ServiceUnavailable(f"HOLDFAST_CHROMIUM={program} cannot run: {error}") from None
    if not re.search(r"Chrom", shown.stdout):
        said = " ".join((shown.stdout + shown.stderr).split())[:200]
        raise ServiceUnavailable(f"HOLDFAST_CHROMIUM={program} is not a Chromium: it says {said!r}")


def _needed(apt: Apt) -> list[str]:
    """The packages and all they need that the system lacks."""
    planned = apt("apt-get", "install", "--simulate", "--no-install-recommends", *PACKAGES)
    missing = re.findall(r"(?m)^Inst (\S+)", planned)
    # Installed packages are not planned, but the fonts are used from the tree, with the browser.
    return sorted({*PACKAGES, *missing})


def _finish(tree: Path, apt: Apt) -> None:
    (tree / "fonts.conf").write_text(FONTS)
    apt.call([tree / PROGRAM, "--version"], env=_environment(tree))


def _environment(tree: Path) -> dict[str, str]:
    """Libraries are found in every folder: one of PulseAudio is in a folder of its own."""
    roots = sorted((tree / "usr" / "lib").glob("*-linux-gnu*"))
    folders = [folder for root in roots for folder in (root, *root.rglob("*")) if folder.is_dir()]
    return {
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, folders)),
        "FONTCONFIG_FILE": str(tree / "fonts.conf"),
        "XDG_CACHE_HOME": str(tree / "cache"),
    }


_CHROMIUM = PackagedProgram(
    title="Chromium",
    name="chromium",
    remedy="Install Chromium, or name one: HOLDFAST_CHROMIUM=/path/to/chromium.",
    choose=_needed,
    finish=_finish,
)
