"""The checker of SQS histories finds planted faults, and a small run of the real server is clean.
Any size: ./hf torture sqs --help
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest
from msgspec.structs import replace

from tests.crash.torture.test_engines import run
from torture.message_history import (
    Action,
    HistoryEnd,
    MessageCall,
    check,
    read_calls,
    write_call,
)

KILLS = 1
SECOND = 10**9
END = HistoryEnd(left={"work": 0}, moves=["COMPLETED"])


def a_call(action: Action, body: str, at: float, **fields: Any) -> MessageCall:
    """A call that begins at this second and takes 10 ms."""
    began = round(at * SECOND)
    own = {"queue": "work", "began_ns": began, "ended_ns": began + SECOND // 100, **fields}
    return MessageCall(action=action, body=body, **own)


def a_receive(body: str, at: float, receive: str, **fields: Any) -> MessageCall:
    return a_call("receive", body, at, receive=receive, **{"seconds": 3, **fields})


def an_order(action: Action, body: str, at: float, sequence: int, **fields: Any) -> MessageCall:
    fields = {"queue": "orders.fifo", "group": "g", "sequence": sequence, **fields}
    return a_call(action, body, at, **fields)


SENT = a_call("send", "a", 0, id="1")
RECEIVED = a_receive("a", 1, "r1", id="1")
DELETED = a_call("delete", "a", 2, receive="r1")
GOOD = [
    SENT,
    RECEIVED,
    DELETED,
    # Received twice, the second time after the timeout; the late delete has no effect.
    a_call("send", "b", 0),
    a_receive("b", 1, "r2", seconds=1),
    a_receive("b", 2.1, "r3"),
    a_call("delete", "b", 2.5, receive="r2"),
    a_receive("b", 5.2, "r4"),
    a_call("delete", "b", 5.3, receive="r4", result="unknown"),
    # Shown again by its holder; an expired handle is refused.
    a_call("send", "c", 0, result="unknown"),
    a_receive("c", 1, "r5"),
    a_call("hide", "c", 1.1, receive="r5", seconds=0),
    a_receive("c", 1.2, "r6"),
    a_call("delete", "c", 1.3, receive="r6"),
    a_call("delete", "c", 4.3, receive="r5", result="refused", error="expired"),
    # Not acknowledged, and not there.
    a_call("send", "d", 0, result="unknown"),
]
ORDERED = [
    an_order("send", "x", 0, 1),
    an_order("send", "y", 0.1, 2),
    an_order("send", "z", 0.2, 3),
    an_order("receive", "x", 1, 1, receive="r1", position=0, seconds=3),
    an_order("receive", "y", 1, 2, receive="r1", position=1, seconds=3),
    an_order("delete", "x", 1.5, 1, receive="r1"),
    an_order("delete", "y", 1.6, 2, receive="r1"),
    an_order("receive", "z", 2, 3, receive="r2", seconds=3),
    an_order("delete", "z", 2.1, 3, receive="r2"),
]


def promises(calls: list[MessageCall], end: HistoryEnd = END) -> set[str]:
    return {violation.promise for violation in check(calls, end)}


def test_a_correct_history_is_accepted(tmp_path: Path) -> None:
    write_call(tmp_path / "one.jsonl", GOOD)
    write_call(tmp_path / "two.jsonl", ORDERED[:3])
    write_call(tmp_path / "two.jsonl", ORDERED[3:])
    calls = read_calls(tmp_path)
    assert len(calls) == len(GOOD) + len(ORDERED)
    assert check(calls, END) == []


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([SENT], "lost"),
        ([SENT, RECEIVED], "lost"),
        ([SENT, RECEIVED, replace(DELETED, result="refused")], "lost"),
        ([RECEIVED, DELETED], "invented"),
        ([SENT, replace(RECEIVED, id="2"), DELETED], "doubled"),
        ([SENT, RECEIVED, DELETED, a_receive("a", 2.02, "r2")], "resurrected"),
        ([SENT, RECEIVED, DELETED, a_receive("a", 60, "r2", queue="moved")], "resurrected"),
        ([SENT, RECEIVED, a_receive("a", 3.9, "r2"), DELETED], "held twice"),
        ([SENT, RECEIVED, a_receive("a", 1.005, "r2"), DELETED], "held twice"),
        ([SENT, replace(RECEIVED, result="refused", error="wrong MD5")], "wrong error"),
        ([replace(SENT, result="refused", error="500")], "wrong error"),
        ([SENT, RECEIVED, replace(DELETED, result="refused"), DELETED], "wrong error"),
    ],
)  # fmt: skip
def test_planted_faults_are_found(calls: list[MessageCall], expected: str) -> None:
    assert expected in promises(calls)


def test_a_message_that_is_shown_or_hidden_for_longer_has_one_holder() -> None:
    longer = a_call("hide", "a", 2, receive="r1", seconds=10)
    again = a_receive("a", 5, "r2")
    assert "held twice" in promises([SENT, RECEIVED, longer, again])
    assert "held twice" not in promises([SENT, RECEIVED, replace(longer, result="unknown"), again])
    assert "held twice" not in promises([SENT, RECEIVED, replace(longer, seconds=1), again])


def test_a_late_delete_that_ends_the_hold_of_another_client_is_found() -> None:
    history = [SENT, RECEIVED, a_receive("a", 4.1, "r2")]
    late = a_call("delete", "a", 5, receive="r1")
    assert promises([*history, late]) == {"lost"}
    assert promises([*history, replace(late, ended_ns=8 * SECOND)]) == set()


@pytest.mark.parametrize(
    "change",
    [
        {"action": "receive", "body": "z", "began_ns": SECOND + 1},
        {"action": "receive", "body": "x", "position": 2},
        {"action": "delete", "body": "y", "result": "refused"},
        {"action": "send", "body": "z", "sequence": 9},
    ],
    ids=["too early", "wrong place in the answer", "the one before is still there", "number"],
)
def test_faults_of_order_are_found(change: dict[str, Any]) -> None:
    calls = []
    for call in ORDERED:
        fits = call.action == change["action"] and call.body == change["body"]
        changed = {**change, "ended_ns": SECOND + 2} if "began_ns" in change else change
        calls.append(replace(call, **changed) if fits else call)
    assert "order" in promises(calls)


def test_a_group_that_is_stored_in_another_order_than_it_was_sent_is_found() -> None:
    swapped = {1: 2, 2: 1, 3: 3}
    calls = [replace(call, sequence=swapped[call.sequence]) for call in ORDERED]
    assert "order" in promises(calls)


def test_messages_that_are_left_and_moves_that_stop_are_found() -> None:
    assert promises([], HistoryEnd(left={"work": 1}, moves=[])) == {"not drained"}
    assert promises([], HistoryEnd(left={}, moves=["COMPLETED", "RUNNING"])) == {"move stopped"}


@pytest.mark.torture
@pytest.mark.timeout(300)
def test_acknowledged_messages_survive_kills_of_the_server(tmp_path: Path) -> None:
    given = os.environ.get("HOLDFAST_SEED")
    seed = SystemRandom().randrange(1_000_000) if given is None else int(given)
    figures = tmp_path / "figures.json"
    result = run(
        "torture", "sqs", "--engine", "sqlite", "--clients", "2", "--receivers", "5",
        "--kills", str(KILLS), "--seed", str(seed), "--json", str(figures),
    )  # fmt: skip
    print(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
    [found] = json.loads(figures.read_text())
    assert found["violations"] == 0
    assert found["server_kills"] == KILLS
    assert found["sent"] > 0
    assert found["deleted"] > 0
    assert (
        f"SQS on sqlite: killed {KILLS} times under 2 processes with 5 receivers" in result.stdout
    )
