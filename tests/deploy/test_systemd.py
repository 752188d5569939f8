"""The units of deploy/systemd, as systemd itself reads them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.conformance.private_server import ServiceUnavailable
from tests.services import needed
from tests.sources import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").iterdir())
PROGRAM = "/opt/holdfast/bin/holdfast"
EXPOSURE_MAX = 50
"""Of 100, as `systemd-analyze security` counts: a unit without any setting has 96."""


@pytest.fixture
def systemd_analyze() -> str:
    with needed("systemd-analyze", "systemd"):
        found = shutil.which("systemd-analyze")
        if found is None:
            raise ServiceUnavailable("it is not on PATH. On Debian, install the package systemd.")
        return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_the_unit(systemd_analyze: str, unit: Path, tmp_path: Path) -> None:
    text = unit.read_text()
    assert f"ExecStart={PROGRAM} " in text
    # The program is not installed here, and systemd looks for it.
    copy = tmp_path / unit.name
    copy.write_text(text.replace(PROGRAM, "/bin/true"))
    verify = [systemd_analyze, "verify", "--man=no", "--recursive-errors=no", str(copy)]
    ran = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    threshold = f"--threshold={EXPOSURE_MAX}"
    review = [systemd_analyze, "security", "--offline=yes", threshold, str(copy)]
    ran = subprocess.run(review, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_systemd_finds_a_mistake(systemd_analyze: str, tmp_path: Path) -> None:
    """Else the test above could not fail."""
    broken = tmp_path / "broken.service"
    broken.write_text(UNITS[0].read_text().replace(PROGRAM, "/bin/true") + "\n[Servize]\nA=b\n")
    verify = [systemd_analyze, "verify", "--man=no", str(broken)]
    ran = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert "Unknown section 'Servize'" in ran.stderr
