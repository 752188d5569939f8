"""`scaling`: advice for each queue, as a table and as JSON."""

import pytest

from tests.cli import seed
from tests.cli.program import Cli


def test_a_line_for_each_queue(cli: Cli) -> None:
    seed.enqueue("a")
    cli("queue", "create", "mail")
    lines = cli("scaling").out.splitlines()
    assert lines[0].split() == ["queue", "waiting", "wait", "workers", "wanted", "slots", "because"]
    assert lines[1].split()[:6] == ["default", "1", "?", "0", "1", "1"]
    assert lines[2].split()[:6] == ["mail", "0", "0ms", "0", "0", "0"]


def test_json(cli: Cli) -> None:
    seed.done("a")
    seed.enqueue("b")
    [found] = cli(
        "scaling", "--queue", "default", "--target-wait", "5s", "--min", "2", "--json"
    ).json
    assert (found["queue"], found["workers"]) == ("default", 2)
    assert found["goal"]["wait_ms"] == 5_000
    assert found["load"]["waiting"] == 1


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (["--queue", "nope"], 3),
        (["--target-wait", "soon"], 2),
        (["--target-wait", "0s"], 2),
        (["--min", "5", "--max", "4"], 2),
        (["--slots", "0"], 2),
    ],
)
def test_invalid_values_are_refused(cli: Cli, line: list[str], code: int) -> None:
    seed.begin()
    assert cli("scaling", *line).code == code
