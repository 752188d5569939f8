"""The walk of docs/guides/fleet.md works as written, and its tables are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_fleet import model, settings
from tests.docs.test_docs import ROOT, looks_like
from tests.engines.sqs import servers
from tests.fleet.infra.declared import cloudformation

PAGE = (ROOT / "docs" / "guides" / "fleet.md").read_text()
ADDRESS = "http://127.0.0.1:4566"
"""The address that the page shows: ministack's own default."""


@pytest.mark.timeout(600)
def test_the_walk_ends_with_a_plan(tmp_path: Path) -> None:
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    walk = PAGE.partition("\n## From nothing to a dry run\n")[2].partition("\n## ")[0]
    shown = re.findall(r"```sh\n(.*?)```", walk, re.DOTALL)
    expected = re.findall(r"```text\n(.*?)```", walk, re.DOTALL)[-1]
    assert shown[-1] == "holdfast fleet run --dry-run\n"
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("AWS_", "HOLDFAST_", "RUNS_FLEET_"))
    }
    programs = str(Path(sys.executable).parent)
    with servers.running("ministack") as url:
        run = subprocess.run(
            ["bash", "-e", "-c", "".join(shown).replace(ADDRESS, url)],
            cwd=tmp_path,
            env={**kept, "PATH": f"{programs}:{os.environ['PATH']}", "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert run.returncode == 0, run.stdout + run.stderr
    assert looks_like(run.stdout, expected.splitlines()), run.stdout


def test_every_setting_is_on_the_page() -> None:
    source = Path(settings.__file__).read_text()
    optional = set(re.findall(r'self\._\w+\("([A-Z_]+)"', source))
    known = {f"{settings.PREFIX}{name}" for name in (*settings.REQUIRED, *optional)}
    assert set(re.findall(r"RUNS_FLEET_[A-Z_]+", PAGE)) == known
    assert set(cloudformation().environment) <= known


def test_names_and_bounds() -> None:
    fields = [*model.RECORD_STATUS.values(), model.RUNNING, model.QUEUED, *model.TASK_TYPES]
    for name in (*fields, model.POOL_TAG, model.LOCK_PREFIX, f"{model.MANAGED_TAG}=true"):
        assert f"`{name}`" in PAGE
    assert f"at most {model.ERROR_MAX:,} characters" in PAGE
    for table in cloudformation().tables.values():
        assert all(f"`{key}`" in PAGE for key in table.keys)
