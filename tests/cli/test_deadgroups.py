"""`dlq groups` and `dlq quarantine`: what kills jobs, and which jobs kill workers."""

import pytest

from holdfast.cli.deadgroups import sparkline
from holdfast.core.model import Failure, FailureKind, Note, Reason
from holdfast.core.verdict import Bury
from tests.cli import making
from tests.cli.program import Cli


def test_groups_tell_what_kills(cli: Cli) -> None:
    for number in range(3):
        making.dead(f"a{number}", text=f"no user {number}", task="greet", tenant=f"t{number % 2}")
    making.dead("b", text="disk is full \x1b[31m", task="save")
    told = cli("dlq", "groups", "--json").json
    assert (told["total"], told["hidden"], told["estimated"]) == (4, 0, False)
    first, second = told["groups"]
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
    assert "1 others are in smaller groups" in limited.err
    some = cli("dlq", "list", "--fingerprint", second["fingerprint"], "--json").json
    assert [job["id"] for job in some] == ["b"]
    assert some[0]["fingerprint"] == second["fingerprint"]
    assert cli("dlq", "retry", "--fingerprint", first["fingerprint"]).out == "retried 3 jobs\n"
    assert [group["ids"] for group in cli("dlq", "groups", "--json").json["groups"]] == [["b"]]


def test_no_groups(cli: Cli) -> None:
    making.enqueue()
    assert cli("dlq", "groups", "--json").json["groups"] == []
    assert cli("dlq", "groups").err == "no dead letter fits\n"
    assert cli("dlq", "quarantine", "--json").json == []
    assert cli("dlq", "quarantine").err == "no job is in quarantine\n"


def test_quarantine_tells_how_to_look_and_put_back(cli: Cli) -> None:
    words = "hello\nFatal Python error: Segmentation fault\n\nCurrent thread 0x1:\n  File x\n"
    crash = Failure(
        kind=FailureKind.CRASH, type="SIGSEGV", message="killed", trace=words, signal=11
    )
    making.dead("other")
    making.ended("a", Bury(Reason.CRASHED, crash), Note(output=b"resizing\n"), task="resize")
    [told] = cli("dlq", "quarantine", "--json").json
    assert (told["id"], told["signal"], told["type"]) == ("a", 11, "SIGSEGV")
    assert (told["crashes"], told["output"], told["workers"]) == (1, "resizing\n", ["w"])
    shown = cli("dlq", "quarantine")
    assert "SIGSEGV" in shown.out
    assert "Fatal Python error: Segmentation fault" in shown.out
    assert "other" not in shown.out
    assert "holdfast dlq show a" in shown.err
    assert "to run alone in a process: holdfast dlq retry a" in shown.err
    assert cli("dlq", "retry", "a").out == "a retried\n"
    assert making.lease().job.runs_alone


@pytest.mark.parametrize(
    ("counts", "bars"),
    [([], ""), ([0, 0], "··"), ([1], "█"), ([0, 1, 4, 8], "·▁▄█"), ([1, 1000], "▁█")],
)
def test_sparkline(counts: list[int], bars: str) -> None:
    assert sparkline(counts) == bars
