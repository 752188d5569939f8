"""Chromium is the one that the environment names, one on PATH, or Debian's, extracted once."""

import os
from pathlib import Path

import pytest

from holdfast.conformance.private_server import ServiceUnavailable
from tests.dashboard.chromium import PROGRAM, find_chromium, given_chromium

APT_GET = """
case "$*" in
  *--simulate*)
    echo "Inst libnss3 (2:3.87 Debian [amd64])"
    echo "Inst chromium-headless-shell (156 Debian [amd64])"
    echo "Conf libnss3 (2:3.87 Debian [amd64])" ;;
  *--print-uris*)
    echo "'https://host/chromium.deb' chromium_156.deb 3 SHA256:00"
    echo "'https://host/libnss3.deb' libnss3_3.deb 3 SHA256:00" ;;
  *" download "*) echo "$@" > "$CALLS"; touch chromium_156.deb libnss3_3.deb ;;
esac
"""
DPKG = f"""
mkdir -p "$3/usr/lib/chromium" "$3/usr/lib/x86_64-linux-gnu/pulseaudio"
printf '#!/bin/sh\\necho Chromium 156, $LD_LIBRARY_PATH\\n' > "$3/{PROGRAM}"
chmod +x "$3/{PROGRAM}"
"""


def write(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)
    return path


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with programs in the place of apt and dpkg, before all others on PATH."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.delenv("HOLDFAST_CHROMIUM", raising=False)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setattr("tests.dashboard.chromium.ON_PATH", ("test-chromium",))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    write(folder / "apt-get", APT_GET)
    write(folder / "dpkg", DPKG)
    return folder


def test_the_environment_may_name_one(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert given_chromium() is None
    named = write(tools / "mine", "echo Google Chrome 156")
    monkeypatch.setenv("HOLDFAST_CHROMIUM", str(named))
    assert given_chromium() == (named, {})


@pytest.mark.parametrize(
    ("name", "says"), [("missing", "cannot run"), ("apt-get", "is not a Chromium")]
)
def test_a_named_one_that_is_none_is_refused(
    tools: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    monkeypatch.setenv("HOLDFAST_CHROMIUM", str(tools / name))
    with pytest.raises(ServiceUnavailable, match=f"HOLDFAST_CHROMIUM={tools / name} {says}"):
        given_chromium()


def test_one_on_path_is_used(tools: Path) -> None:
    installed = write(tools / "test-chromium", "")
    assert find_chromium() == (installed, {})


def test_debians_is_extracted_with_the_libraries_that_are_missing(
    tools: Path, tmp_path: Path
) -> None:
    found = find_chromium(tmp_path / "cache")
    tree = found.program.parents[3]
    assert found.program == tree / PROGRAM
    libraries = tree / "usr/lib/x86_64-linux-gnu"
    assert found.environment["LD_LIBRARY_PATH"] == f"{libraries}:{libraries}/pulseaudio"
    assert found.environment["FONTCONFIG_FILE"] == str(tree / "fonts.conf")
    asked = (tmp_path / "calls").read_text().split()
    assert {"libnss3", "chromium-headless-shell", "fonts-dejavu-core"} < set(asked)

    write(tools / "apt-get", "exit 1")
    assert find_chromium(tmp_path / "cache") == found


def test_a_browser_that_does_not_start_says_why(tools: Path, tmp_path: Path) -> None:
    write(tools / "dpkg", DPKG.replace("echo Chromium 156,", "echo no libgbm; exit 127;"))
    with pytest.raises(ServiceUnavailable, match=r"no libgbm.* Install Chromium, or name one"):
        find_chromium(tmp_path / "cache")
