"""The workflow runs the checks on every supported Python, and forms for issues can be read."""

import re
import tomllib

import pytest
import yaml

from tests.sources import ROOT

FOLDER = ROOT / ".github"
FORMS = sorted(path.name for path in (FOLDER / "ISSUE_TEMPLATE").glob("*.yml"))


def test_the_workflow_runs_on_the_pythons_of_the_package() -> None:
    workflow = yaml.safe_load((FOLDER / "workflows" / "check.yml").read_text())
    [job] = workflow["jobs"].values()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)\n", "\n".join([*project["classifiers"], ""]))
    assert job["strategy"]["matrix"]["python"] == named
    assert project["requires-python"] == f">={named[0]}"
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == ["./hf check", "./hf test"]
    assert workflow["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("name", [name for name in FORMS if name != "config.yml"])
def test_a_form_for_issues_is_complete(name: str) -> None:
    form = yaml.safe_load((FOLDER / "ISSUE_TEMPLATE" / name).read_text())
    assert form["name"]
    assert form["description"]
    ids = [part["id"] for part in form["body"]]
    assert len(ids) == len(set(ids))
    for part in form["body"]:
        assert part["type"] in {"textarea", "input"}
        assert part["attributes"]["label"]
