"""`dlq groups` and `dlq quarantine`: dead letters by error, and jobs that crash workers."""

import pytest

from holdfast.cli.dead_letters import sparkline
from holdfast.core.model import Failure, FailureKind, Note, Reason
from holdfast.core.verdict import Bury
from tests.cli import seed
from tests.cli.program import Cli


def test_groups_show_errors_by_frequency(cli: Cli) -> None:
    for number in range(3):
        seed.dead(f"a{number}", text=f"no user {number}", task="greet", tenant=f"t{number % 2}")
    seed.dead("b", text="disk is full \x1b[31m", task="save")
    answer = cli("dlq", "groups", "--json").json
    assert (answer["total"], answer["hidden"], answer["estimated"]) == (4, 0, False)
    first, second = answer["groups"]
    assert (first["count"], first["type"], first["text"]) == (3, "ValueError", "no user 2")
    assert (first["tasks"], first["tenants"]) == ({"greet": 3}, {"t0": 2, "t1": 1})
    assert (first["workers"], first["ids"]) == ({"w": 3}, ["a2", "a1", "a0"])
    assert first["first_at"] <= first["last_at"]
    assert sum(first["trend"]) == 3
    assert second["count"] == 1
    shown = cli("dlq", "groups")
    assert "ValueError: no user 2" in shown.out
    assert "\\x1b[31m" in shown.out
    assert f"dlq list --fingerprint {first['fingerprint']}" in shown.err
    limited = cli("dlq", "groups", "--limit", "1")
    assert "1 more in smaller groups" in limited.err
    some = cli("dlq", "list", "--fingerprint", second["fingerprint"], "--json").json
    assert [job["id"] for job in some] == ["b"]
    assert some[0]["fingerprint"] == second["fingerprint"]
    assert cli("dlq", "retry", "--fingerprint", first["fingerprint"]).out == "retried 3 jobs\n"
    assert [group["ids"] for group in cli("dlq", "groups", "--json").json["groups"]] == [["b"]]


def test_no_groups(cli: Cli) -> None:
    seed.enqueue()
    assert cli("dlq", "groups", "--json").json["groups"] == []
    assert cli("dlq", "groups").err == "no dead letters match\n"
    assert cli("dlq", "quarantine", "--json").json == []
    assert cli("dlq", "quarantine").err == "no job is in quarantine\n"


def test_quarantine_says_how_to_inspect_and_retry(cli: Cli) -> None:
    words = "hello\nFatal Python error: Segmentation fault\n\nCurrent thread 0x1:\n  File x\n"
    crash = Failure(
        kind=FailureKind.CRASH, type="SIGSEGV", message="killed", trace=words, signal=11
    )
    seed.dead("other")
    seed.ended("a", Bury(Reason.CRASHED, crash), Note(output=b"resizing\n"), task="resize")
    [answer] = cli("dlq", "quarantine", "--json").json
    assert (answer["id"], answer["signal"], answer["type"]) == ("a", 11, "SIGSEGV")
    assert (answer["crashes"], answer["output"], answer["workers"]) == (1, "resizing\n", ["w"])
    shown = cli("dlq", "quarantine")
    assert "SIGSEGV" in shown.out
    assert "Fatal Python error: Segmentation fault" in shown.out
    assert "other" not in shown.out
    assert "holdfast dlq show a" in shown.err
    assert 'alone in a process, with "holdfast dlq retry a' in shown.err
    assert cli("dlq", "retry", "a").out == "a retried\n"
    assert seed.lease().job.runs_alone


@pytest.mark.parametrize(
    ("counts", "bars"),
    [([], ""), ([0, 0], "··"), ([1], "█"), ([0, 1, 4, 8], "·▁▄█"), ([1, 1000], "▁█")],
)
def test_sparkline(counts: list[int], bars: str) -> None:
    assert sparkline(counts) == bars
