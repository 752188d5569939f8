"""Django's own tasks on Holdfast, in a tiny project: here Django 6, or the backport before that."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests import template
from tests.cli.program import environment, run_program

SITE = Path(__file__).parent / "site"


def test_a_worker_runs_tasks_and_nothing_else(tmp_path: Path) -> None:
    check_refused(act("refused", tmp_path))
    with worker(tmp_path):
        check_worked(act("worked", tmp_path))
        for foreign in ("os.system", "shop.tasks.plain"):
            url = f"sqlite:///{tmp_path}/jobs.db"
            explained = run_program(tmp_path, "job", "explain", foreign, "--json", "--url", url)
            assert "task_unknown" in [each["code"] for each in explained.json["reasons"]]
    heard = (tmp_path / "heard").read_text().splitlines()
    assert sorted(line for line in heard if " shaky " in line) == [
        "finished shaky FAILED 2",
        "finished shaky SUCCESSFUL 2",
        "started shaky RUNNING 1",
        "started shaky RUNNING 1",
        "started shaky RUNNING 2",
        "started shaky RUNNING 2",
    ]


def check_refused(found: Any) -> None:
    invalid, backend = ("InvalidTask", "InvalidTaskError"), ("InvalidTaskBackend",)
    for name in ("queue", "priority", "naive"):
        assert found[name] in invalid, found
    for name in ("option", "url", "names", "own_file", "timeout"):
        assert found[name].startswith(backend), found
    assert found["no_json"] == "TypeError"
    assert found["unknown"] == "TaskResultDoesNotExist"
    assert found["mismatch"] == "TaskResultMismatch"
    assert found["foreign"] == ["TaskResultDoesNotExist"] * 4
    assert found["imported"] == []


def check_worked(ended: Any) -> None:
    assert {name: each["status"] for name, each in ended.items()} == {
        "add": "SUCCESSFUL",
        "slow": "SUCCESSFUL",
        "shaky": "SUCCESSFUL",
        "failing": "FAILED",
        "ask": "SUCCESSFUL",
        "unspeakable": "FAILED",
        "elsewhere": "SUCCESSFUL",
    }
    values = {name: each["value"] for name, each in ended.items() if each["value"] is not None}
    assert values == {"add": 5, "slow": [0.01], "shaky": 2, "ask": 42, "elsewhere": "found"}
    assert [ended[each]["attempts"] for each in ("add", "shaky", "failing")] == [1, 2, 2]
    assert ended["shaky"]["errors"] == ["LookupError"]
    assert ended["failing"]["errors"] == ["LookupError", "LookupError"]
    assert "attempt 2 of 9" in ended["failing"]["traces"][1]
    assert ended["unspeakable"]["errors"] == ["TypeError", "TypeError"]
    assert (ended["slow"]["queue"], ended["slow"]["priority"]) == ("mail", 7)
    assert all(each["in_order"] for each in ended.values()), ended
    assert all(each["workers"] == ["site-worker"] for each in ended.values()), ended


def test_stored_jobs_also_run_with_the_plain_command(tmp_path: Path) -> None:
    found = act("enqueued", tmp_path)
    payload = {"args": [1], "kwargs": {"other": 2}}
    assert found["job"] == ["shop.tasks.add", "mail", -100, payload]
    assert found["attempts"] == 2
    assert 3500 < found["delay_s"] <= 3600
    assert found["same"] == [True, [1], {"other": 2}, "READY", "default"]
    assert found["run_after_s"] < 5
    assert found["async"]
    assert found["heard"]
    line = ["worker", "run", "holdfast.django:app", "--url", f"sqlite:///{tmp_path}/jobs.db"]
    program = str(Path(sys.executable).with_name("holdfast"))
    with started([program, *line, "--queues", "default,mail", "--name", "site-worker"], tmp_path):
        assert act("worked", tmp_path)["shaky"]["value"] == 2


def test_a_job_in_every_state_can_be_read(tmp_path: Path) -> None:
    found = act("read", tmp_path)
    assert found["errors"] == {
        "crashed": ["ChildProcessError", "killed by SIGSEGV"],
        "timed_out": ["TimeoutError", ""],
        "overdue": ["LeaseLost", ""],
        "builtin": ["KeyError", ""],
        "own": ["Bury", ""],
        "dotted": ["InvalidOperation", "a trace"],
        "odd": ["Exception", ""],
    }
    assert found["states"] == ["READY", "RUNNING", "SUCCESSFUL", "FAILED", "FAILED"]
    assert found["garbage"] == [[], {}, 2]
    assert found["moved"] == ["grave", 3, None]
    assert found["task"] == ["default", 0], "the task itself was changed"
    assert found["moved"] == ["grave", 3, None]
    assert found["task"] == ["default", 0], "what was read of a job changes no task"


def test_test_modes(tmp_path: Path) -> None:
    assert act("inlined", tmp_path) == [2, "FAILED", [0]]
    assert not (tmp_path / "jobs.db").exists()


@pytest.mark.parametrize("where", ["files", "same_database", "another_database"])
def test_a_job_exists_only_if_its_transaction_commits(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    given: dict[str, str] = {}
    if where != "files":
        dsn: str = request.getfixturevalue("pg_dsn")
        given["SITE_DATABASES"] = json.dumps({"default": database(dsn)})
        if where == "same_database":
            given["SITE_JOBS"] = dsn
    assert act("transactional", tmp_path, **given) == {
        "before": True,
        "status": "READY",
        "there": True,
        "undone": True,
        "enqueued_at": True,
        "at_once": True,
    }


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    page = (SITE.parents[2] / "docs" / "integrations" / "django.md").read_text()
    (tmp_path / "reports").mkdir()
    (tmp_path / "manage.py").write_text((SITE / "manage.py").read_text())
    for name, text in shown(page):
        (tmp_path / name).write_text(text)
    result = template.run(["manage.py", "check"], tmp_path, environment())
    assert result.returncode == 0, result.stderr
    serve = [sys.executable, "manage.py", "holdfast_worker"]
    with started(serve, tmp_path, cwd=tmp_path):
        asked = template.run(["ask.py"], tmp_path, environment())
    assert (asked.returncode, asked.stdout) == (0, "9 pages\n"), asked.stderr


def shown(page: str) -> Iterator[tuple[str, str]]:
    """Each file of the page: its first line names it."""
    import django

    for found in re.findall(r"```py\n(.*?)```", page, re.DOTALL):
        text: str = found
        name = text.partition("\n")[0].removeprefix("# ")
        if django.VERSION < (6,):
            text = text.replace("from django.tasks", "from django_tasks")
            text = text.replace('"reports"]', '"reports", "django_tasks"]')
        yield name, text


def act(scene: str, folder: Path, **given: str) -> Any:
    variables = environment(SITE_FOLDER=str(folder), **given)
    result = template.run(["scenes.py", scene], SITE, variables, timeout_s=120)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@contextmanager
def worker(folder: Path) -> Iterator[None]:
    """As people start one, from another folder than the project's."""
    line = [sys.executable, str(SITE / "manage.py"), "holdfast_worker", "--processes", "1"]
    with started([*line, "--name", "site-worker"], folder, cwd=folder):
        yield


@contextmanager
def started(line: list[str], folder: Path, cwd: Path = SITE) -> Iterator[None]:
    given = environment(SITE_FOLDER=str(folder), DJANGO_SETTINGS_MODULE="settings")
    log = folder / "worker.log"
    with log.open("wb") as file:
        process = subprocess.Popen(line, cwd=cwd, env=given, stdout=file, stderr=file)
    try:
        yield
    except BaseException:
        print(log.read_text())
        raise
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()


def database(dsn: str) -> dict[str, Any]:
    parts = urlsplit(dsn)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": parts.username,
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname,
        "PORT": parts.port,
    }
