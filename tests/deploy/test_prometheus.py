"""The alert rules of docs/prometheus-alerts.yml, checked and evaluated by Prometheus itself."""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.promtool import find_promtool
from tests.services import needed
from tests.sources import ROOT

RULES = ROOT / "docs" / "prometheus-alerts.yml"


@pytest.fixture(scope="module")
def promtool() -> Path:
    with needed("promtool", "promtool"):
        return find_promtool()


def run(promtool: Path, *arguments: str | Path) -> tuple[int, str]:
    ran = subprocess.run(
        [promtool, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return ran.returncode, ran.stdout


def test_prometheus_accepts_the_rules(promtool: Path) -> None:
    count = sum(len(group["rules"]) for group in yaml.safe_load(RULES.read_text())["groups"])
    code, said = run(promtool, "check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert code == 0, said
    assert f"{count} rules found" in said


def test_prometheus_refuses_a_wrong_rule(promtool: Path, tmp_path: Path) -> None:
    """Else the test above could not fail."""
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(RULES.read_text().replace("sum by", "summ by", 1))
    code, said = run(promtool, "check", "rules", wrong)
    assert code != 0, said
