"""`holdfast worker run` and `holdfast up --app` for the tasks of an application."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import ConfigError
from holdfast.worker.launcher import store_of
from tests.cli.program import run_program
from tests.cli.test_up import program

_TIMEOUT_S = 60

_WITH_AN_ENGINE = """
from holdfast import Holdfast
from holdfast.engines.registry import open_engine

app = Holdfast(engine=open_engine("memory:"))
"""
_SHOP = """
from holdfast import Holdfast

app = Holdfast({url!r})


@app.task(name="price")
def price(name: str) -> int:
    print(name)
    return {{"tea": 3}}[name]


@app.on_dead_letter(queue="grave")
def report(letter: object) -> None:
    print(letter)
"""


def shop(folder: Path, url: str | None = "sqlite:///shop.db") -> None:
    (folder / "shop.py").write_text(_SHOP.format(url=url))


@pytest.mark.parametrize("line", [("worker", "run", "shop:app"), ("up", "--app", "shop:app")])
def test_the_store_of_the_application_is_served(tmp_path: Path, line: tuple[str, ...]) -> None:
    shop(tmp_path)
    if line[0] == "up":
        line += ("--no-serve", "--count", "1")
    with program(tmp_path, *line) as worker:
        tea = ["enqueue", "--id", "t", "--task", "price", "--payload", '{"name": "tea"}', "--wait"]
        ran = run_program(tmp_path, *tea, "--url", "sqlite:///shop.db")
        assert (ran.code, ran.out) == (0, "tea\n3\n"), ran
        # On a busy machine the job waits until the worker has started.
        assert all(line.startswith("still waiting: ") for line in ran.err.splitlines()), ran
        worker.send_signal(signal.SIGTERM)
        out, err = worker.communicate(timeout=_TIMEOUT_S)
    assert "sqlite:///shop.db" in out + err
    runs = (
        " runs command, price from queue default, handles the dead letters of queue grave, up to "
    )
    assert runs in err
    assert " jobs at a time, on sqlite:///shop.db\n" in err
    assert re.search(r"(?m)^holdfast: \S+ price done after \d+ ms$", err)
    assert run_program(tmp_path, "job", "logs", "t", "--url", "sqlite:///shop.db").out == "tea\n"
    assert not (tmp_path / "holdfast.db").exists()
    if line[0] == "up":
        assert "holdfast status --url sqlite:///shop.db\n" in out


def test_with_log_format_json_every_line_is_json(tmp_path: Path) -> None:
    """Those of the launcher, too: it restarts the worker, and stops when asked."""
    shop(tmp_path)
    line = ("worker", "run", "shop:app", "--name", "w", "--log-format", "json")
    with program(tmp_path, *line) as worker:
        written: list[str] = []

        def read_to(text: str) -> None:
            assert worker.stderr is not None
            while not written or text not in written[-1]:
                written.append(worker.stderr.readline())
                assert written[-1], written

        read_to("running on sqlite:///shop.db: w; ")
        with holdfast.BlockingHoldfast(f"sqlite:///{tmp_path}/shop.db") as app:
            [found] = app.workers.all()
        os.kill(found.record.pid, signal.SIGKILL)
        read_to("a worker ended by signal 9; restarting it in ")
        worker.send_signal(signal.SIGTERM)
        _, rest = worker.communicate(timeout=_TIMEOUT_S)
    lines = [json.loads(each) for each in [*written, *rest.splitlines()]]
    assert {each["logger"] for each in lines} == {"holdfast.worker"}
    assert [each["level"] for each in lines if "restarting" in each["message"]] == ["warning"]
    assert lines[-1]["message"].startswith("stopping: running jobs may finish; ")


@pytest.mark.parametrize("by_flag", [True, False])
def test_a_flag_or_the_environment_goes_first(tmp_path: Path, by_flag: bool) -> None:
    shop(tmp_path)
    line = ["worker", "run", "shop:app", "--queues", "none"]
    if by_flag:
        ran = run_program(tmp_path, *line, "--url", "sqlite:///other.db")
    else:
        ran = run_program(tmp_path, *line, HOLDFAST_URL="sqlite:///other.db")
    assert (ran.code, "queue none does not exist" in ran.err) == (3, True), ran
    assert (tmp_path / "other.db").exists()
    assert not (tmp_path / "shop.db").exists()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("raise SystemExit(3)", "shop:app cannot be imported: SystemExit: 3"),
        ("def f():\n    1/0\n\nf()", "ZeroDivisionError: division by zero at shop.py:2 in f$"),
        ("import nowhere", "No module named 'nowhere' at shop.py:1 in <module>$"),
        (
            "app = 3",
            "^shop:app cannot be imported: shop:app is an int, not a Holdfast appl",
        ),
        ("import os; os._exit(3)", "it ended the process that imported it"),
        (_WITH_AN_ENGINE, "shop:app was created with an engine, not with a URL: give --url"),
    ],
)
def test_an_application_without_a_store_is_refused(
    tmp_path: Path, source: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=says):
        store_of("shop:app")
    assert not any(name.endswith(".db") for name in os.listdir(tmp_path))  # noqa: PTH208
