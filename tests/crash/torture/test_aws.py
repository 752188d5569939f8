"""Kills workers, gates and distributors on SQS, at a small size, and tests judges and proxy.

Any size: `./hf torture aws`.

It runs in a separate process, which adopts orphans.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3.session
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from holdfast.conformance.chaos.verify import Fault
from holdfast.core.model import Job, Reason, State
from holdfast.testing.sqs import KEY, REGION, sqs_server
from tests.crash.torture.test_engines import run
from tests.crash.torture.test_rabbitmq import a_seed
from torture.aws_gates import judge_letters
from torture.service_history import (
    FAULTS,
    SETTLED_NS,
    Causes,
    Letter,
    MessageRun,
    SentMessage,
    ServiceCall,
    ServiceFindings,
    judge_moves,
    judge_workers,
    read_message_runs,
    read_service_calls,
)
from torture.sqs_proxy import (
    RATES,
    ServiceDice,
    SqsProxy,
    faults_after,
    faults_before,
    name_in,
    without_entry,
)

SMALL = {
    "workers": "--workers 1 --kills 1 --freezes 0 --messages 20 --seconds 1",
    "gates": "--kills 1 --messages 40 --seconds 1",
}
SECOND = 1_000_000_000


@pytest.mark.torture
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", SMALL)
def test_nothing_that_sqs_acknowledged_is_lost(part: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = [*SMALL[part].split(), "--seed", str(a_seed()), "--json", str(figures)]
    result = run("torture", "aws", "--part", part, *options)
    print(result.stdout)
    assert result.returncode == 0, result.stderr + result.stdout
    [found] = json.loads(figures.read_text())
    assert (found["kills"], found["violations"]) == (1, 0)
    assert found["sent"] > 0
    if part == "workers":
        assert found["done"] + found["dead"] >= found["sent"]
        assert found["runs"] >= found["done"]
    else:
        assert found["entered"] >= found["confirmed"] > 0
        assert found["published"] == found["entered"]
        assert found["moved"] > 0


SENT = [
    SentMessage("m-1", "work", True),
    SentMessage("m-2", "then", True),
    SentMessage("m-3", "bury", True),
    SentMessage("m-4", "fail", True),
    SentMessage("m-5", "work", False),
    SentMessage("m-6", "work", True),
]
LETTERS = [Letter("m-3", Reason.EXPLICIT, 1), Letter("m-4", Reason.ATTEMPTS, 2)]


def a_run(name: str, at_s: float, outcome: str = "end", **fields: Any) -> MessageRun:
    at_ns = int(at_s * SECOND)
    defaults: dict[str, Any] = {"message": f"id of {name}", "attempt": 1, "pids": (10, 1)}
    return MessageRun(
        name=name,
        begin_ns=at_ns,
        last_ns=at_ns + SECOND // 2,
        outcome=outcome,
        **{**defaults, **fields},
    )


RUNS = [
    a_run("m-1", 1),
    a_run("m-2", 1),
    a_run("m-2.then", 2),
    a_run("m-3", 1, "bury"),
    a_run("m-4", 1, "raise"),
    a_run("m-4", 3, "raise", attempt=2),
    a_run("m-6", 1, "", pids=(20, 1)),
    a_run("m-6", 5, attempt=2),
]
KILL = Fault("kill", "child", int(1.2 * SECOND), (20,))


def a_call(name: str, at_s: float, fault: str = "", **fields: Any) -> ServiceCall:
    at_ns = int(at_s * SECOND)
    defaults: dict[str, Any] = {"action": "DeleteMessageBatch", "queue": "work"}
    return ServiceCall(
        fault=fault, names=[name], began_ns=at_ns, ended_ns=at_ns, **{**defaults, **fields}
    )


def judged(
    *,
    sent: list[SentMessage] = SENT,
    runs: list[MessageRun] = RUNS,
    letters: list[Letter] = LETTERS,
    faults: list[Fault] | None = None,
    calls: list[ServiceCall] | None = None,
) -> ServiceFindings:
    causes = Causes([KILL] if faults is None else faults, calls or [])
    return judge_workers(sent, runs, letters, causes, attempts_max=2)


def test_a_correct_run_is_accepted() -> None:
    findings = judged()
    assert findings.violations == []
    assert findings.counts == {
        "done": 3, "dead": 2, "reruns": 2, "overlaps": 0, "sent": 5, "runs": 8, "letters": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("actions", "is_explained"),
    [
        (("ReceiveMessage", "SendMessageBatch", "DeleteMessageBatch"), True),
        (("SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch"), False),
        (("ReceiveMessage", "SendMessageBatch"), False),
        (("ReceiveMessage", "DeleteMessageBatch"), False),
    ],
)
def test_a_message_that_a_worker_sends_again_is_explained(
    actions: tuple[str, ...], *, is_explained: bool
) -> None:
    """Only if it had received it, and the first one was deleted."""
    calls = [a_call("m-1", 5 + at, action=action) for at, action in enumerate(actions)]
    found = judged(runs=[*RUNS, a_run("m-1", 9, message="other")], calls=calls).violations
    assert ("doubled: m-1" not in str(found)) is is_explained


def without(name: str) -> list[MessageRun]:
    return [each for each in RUNS if each.name != name]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"runs": without("m-1")}, "lost: m-1 was sent"),
        ({"runs": without("m-2.then")}, "lost: m-2 is done, and its follow-up"),
        ({"letters": LETTERS[1:]}, "lost: m-3 was sent"),
        ({"runs": [*RUNS, a_run("m-9", 1)]}, "invented: m-9"),
        ({"letters": [*LETTERS, Letter("m-9", Reason.EXPLICIT, 1)]}, "invented: m-9"),
        ({"runs": [*RUNS, a_run("m-1.then", 1)]}, None),
        ({"runs": [*RUNS, a_run("m-3.then", 1)]}, "invented: m-3.then"),
        ({"faults": []}, "ran again: m-6 in attempt 2"),
        ({"faults": [Fault("kill", "child", SECOND, (30,))]}, "ran again: m-6"),
        ({"faults": [Fault("kill", "child", 6 * SECOND, (20,))]}, "ran again: m-6"),
        ({"runs": [*RUNS, a_run("m-1", 9, attempt=2)]}, "ran again: m-1"),
        ({"runs": [*RUNS, a_run("m-1", 9, message="other")]}, "doubled: m-1"),
        ({"runs": [*RUNS, a_run("m-2.then", 9, message="other")]}, "doubled: m-2.then"),
        ({"letters": [*LETTERS, Letter("m-6", Reason.ATTEMPTS, 1)]}, "early death: m-6"),
        ({"letters": [*LETTERS, Letter("m-6", Reason.ATTEMPTS, 2)]}, None),
        ({"letters": [*LETTERS, Letter("m-6", Reason.EXPLICIT, 2)]}, "wrong death: m-6"),
        ({"letters": [*LETTERS, Letter("m-6", None, 9)]}, "unexplained death: SQS moved m-6"),
    ],
)
def test_faults_of_workers_are_found(change: dict[str, Any], expected: str | None) -> None:
    violations = judged(**change).violations
    if expected is None:
        assert violations == []
    else:
        assert [text for text in violations if text.startswith(expected)], violations


def test_a_run_may_begin_soon_after_the_kill_of_its_launcher() -> None:
    for late_s, is_explained in ((0.5, True), (SETTLED_NS / SECOND + 1, False)):
        kill = Fault("kill", "launcher", int((1 - late_s) * SECOND), (1, 10, 20))
        assert bool(judged(faults=[kill]).violations) != is_explained


def again(message: str = "id of m-1") -> list[MessageRun]:
    return [*RUNS, a_run("m-1", 9, attempt=2, message=message)]


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"shuffle", "empty"}))
def test_a_fault_of_the_service_explains_a_second_run(fault: str) -> None:
    struck = [a_call("m-1", 2, fault)]
    assert judged(runs=again(), calls=struck).violations == []
    assert judged(runs=again(), calls=[a_call("m-2", 2, fault)]).violations
    assert judged(runs=again(), calls=[a_call("m-1", 10, fault)]).violations
    early = a_call("m-1", 1 - SETTLED_NS / SECOND - 1, fault)
    assert judged(runs=again(), calls=[early]).violations


def test_what_explains_nothing() -> None:
    assert judged(runs=again(), calls=[a_call("m-1", 2)]).violations
    for fault in ("shuffle", "empty"):
        assert judged(runs=again(), calls=[a_call("m-1", 2, fault)]).violations


def test_only_a_doubtful_send_explains_another_message() -> None:
    lost_delete = a_call("m-1", 2, "reply")
    assert judged(runs=again("other"), calls=[lost_delete]).violations
    lost_send = a_call("m-1", 0, "reply", action="SendMessageBatch")
    assert judged(runs=again("other"), calls=[lost_send]).violations == []


def test_a_second_run_of_the_parent_explains_another_follow_up() -> None:
    runs = [*RUNS, a_run("m-2", 6, attempt=2), a_run("m-2.then", 9, message="other")]
    assert judged(runs=runs, calls=[a_call("m-2", 2, "reply")]).violations == []


@pytest.mark.parametrize("what", ["stall", "freeze"])
def test_stalls_and_freezes_explain_a_lapse(what: str) -> None:
    fault = Fault(what, "x", 2 * SECOND, (20,), until_ns=3 * SECOND)
    assert judged(faults=[fault]).violations == []
    late = Fault(what, "x", 6 * SECOND, (20,), until_ns=7 * SECOND)
    assert judged(faults=[late]).violations
    other = Fault(what, "x", 2 * SECOND, (30,), until_ns=3 * SECOND)
    assert bool(judged(faults=[other]).violations) == (what == "freeze")


def test_runs_are_read_by_message_and_receive_count() -> None:
    who = {"name": "m-1", "message": "a"}
    lines = [
        {"what": "begin", **who, "attempt": 1, "pids": [5], "at_ns": 1},
        {"what": "beat", **who, "attempt": 1, "at_ns": 4},
        {"what": "begin", **who, "attempt": 2, "pids": [6], "at_ns": 3},
        {"what": "end", **who, "attempt": 2, "at_ns": 5},
    ]
    assert read_message_runs(lines) == [
        MessageRun("m-1", "a", 1, (5,), 1, 4),
        MessageRun("m-1", "a", 2, (6,), 3, 5, "end"),
    ]


def moved(*calls: ServiceCall, faults: list[Fault] | None = None) -> list[str]:
    sent = {"m-1": True, "m-2": False}
    return judge_moves(sent, calls, "source", Causes(faults or [], calls)).violations


def a_move(at_s: float, fault: str = "", **fields: Any) -> ServiceCall:
    return a_call("m-1", at_s, fault, **{"action": "SendMessageBatch", "queue": "source", **fields})


def test_moves_of_a_distributor() -> None:
    kill = Fault("kill", "distributor", SECOND, (1,))
    assert moved(a_move(0)) == []
    assert moved(a_move(0), a_move(2), faults=[kill]) == []
    assert moved(a_move(0, "reply"), a_move(2)) == []
    assert moved(a_move(0), a_call("m-1", 1, "reply", queue="tenant-a"), a_move(2)) == []
    assert moved(a_move(0, "throttle"), a_move(2)) == []


@pytest.mark.parametrize(
    ("calls", "faults"),
    [
        ([], []),
        ([a_move(0, "throttle")], []),
        ([a_move(0, queue="elsewhere")], []),
        ([a_move(0), a_move(2)], []),
        ([a_move(0), a_move(2)], [Fault("kill", "gates", SECOND, (1,))]),
        ([a_move(0), a_move(2)], [Fault("kill", "distributor", 3 * SECOND, (1,))]),
    ],
)
def test_wrong_moves_are_found(calls: list[ServiceCall], faults: list[Fault]) -> None:
    [text] = moved(*calls, faults=faults)
    assert text.startswith(("not moved: m-1", "moved again: m-1"))


HEADERS = {"gate.receive_count": "2", "gate.sent_at": "1", "gate.source_arn": "arn"}


def a_letter(name: str, **fields: Any) -> Job:
    given = {"state": State.DEAD, "headers": HEADERS, **fields}
    return Job(id=f"gate:{name}", task="t", queue="letters", payload=name.encode(), **given)


def test_adopted_letters() -> None:
    sent = {"m-1": True, "m-2": False}
    assert judge_letters(sent, [a_letter("m-1")]) == []
    assert judge_letters(sent, [a_letter("m-1"), a_letter("m-2")]) == []


@pytest.mark.parametrize(
    ("letters", "expected"),
    [
        ([], "forgotten: m-1"),
        ([a_letter("m-1"), a_letter("m-1")], "adopted 2 times: m-1"),
        ([a_letter("m-1"), a_letter("m-9")], "invented: the dead letter m-9"),
        ([a_letter("m-1", state=State.WAITING)], "not dead: the letter m-1"),
        ([a_letter("m-1", headers={})], "the letter m-1 lacks gate.receive_count"),
    ],
)
def test_faults_of_adopted_letters_are_found(letters: list[Job], expected: str) -> None:
    found = judge_letters({"m-1": True, "m-2": False}, letters)
    assert [text for text in found if text.startswith(expected)], found


# The proxy


def test_faults_happen_to_the_calls_that_they_are_about() -> None:
    two = {"Entries": [{"Id": "0"}, {"Id": "1"}]}
    assert "entry" in faults_before("SendMessageBatch", two)
    assert "entry" not in faults_before("SendMessageBatch", {"Entries": [{"Id": "0"}]})
    assert "empty" in faults_before("ReceiveMessage", {})
    assert "empty" not in faults_before("GetQueueUrl", {})
    assert faults_after("ReceiveMessage", {"Messages": [{}, {}]})[:2] == ("double", "shuffle")
    assert "shuffle" not in faults_after("ReceiveMessage", {"Messages": [{}]})
    assert faults_after("ReceiveMessage", {}) == ("reply", "half")
    assert set(RATES) == set(FAULTS)


def test_the_same_seed_arms_the_same_faults() -> None:
    def armed(seed: int) -> list[str]:
        dice = ServiceDice(seed, 1.0)
        assert dice.strike(FAULTS) == ""
        found = []
        for _ in range(20):
            dice.arm()
            found.append(dice.strike(FAULTS))
        return found

    assert armed(1) == armed(1) != armed(2)


def test_one_entry_of_a_batch_fails() -> None:
    request = {"QueueUrl": "u", "Entries": [{"Id": "a"}, {"Id": "b"}]}
    left, failed = without_entry(request, 0)
    assert left == {"QueueUrl": "u", "Entries": [{"Id": "b"}]}
    assert (failed["Id"], failed["SenderFault"]) == ("a", False)


def test_names_are_found_in_bodies() -> None:
    assert name_in('{"name":"m-12.then","seconds":0}') == "m-12.then"
    assert name_in("m-7") == "m-7"
    assert name_in("other") == ""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    """A client behind a proxy with a fault at nearly every call."""
    with (
        sqs_server() as url,
        SqsProxy(url, tmp_path / "service.jsonl", seed=7, every_s=0.001) as proxy,
    ):
        made = boto3.session.Session().client(
            "sqs",
            endpoint_url=proxy.url,
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=KEY,
            config=Config(retries={"total_max_attempts": 1}, read_timeout=5),
        )
        answer = made.create_queue(QueueName="q", Attributes={"VisibilityTimeout": "1"})
        proxy.start_faults()
        yield proxy, made, answer["QueueUrl"]
        made.close()


@pytest.mark.torture
def test_the_proxy_misbehaves_and_writes_it_down(client: Any, tmp_path: Path) -> None:
    proxy, sqs, url = client
    sent: set[str] = set()
    lost = 0
    for number in range(40):
        names = [f"m-{2 * number}", f"m-{2 * number + 1}"]
        entries = [{"Id": str(at), "MessageBody": name} for at, name in enumerate(names)]
        try:
            answer = sqs.send_message_batch(QueueUrl=url, Entries=entries)
            sent |= {names[int(each["Id"])] for each in answer["Successful"]}
        except (BotoCoreError, ClientError, KeyError):
            lost += 1
    counts = proxy.stop_faults()
    assert lost
    assert counts.total()
    found: set[str] = set()
    while answer := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        found |= {each["Body"] for each in answer}
        for each in answer:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
    assert found >= sent
    calls = read_service_calls(tmp_path / "service.jsonl")
    in_doubt = {
        name for call in calls if call.fault in ("reply", "half", "stall") for name in call.names
    }
    assert found - sent <= in_doubt
    refused = {"throttle", "request"}
    assert not found & {
        name
        for call in calls
        if call.fault in refused and call.action == "SendMessageBatch"
        for name in call.names
    }


@pytest.mark.torture
def test_a_proxy_without_an_endpoint_cuts_connections(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with SqsProxy(url, tmp_path / "journal", seed=1, every_s=1.0) as proxy:
        port = int(proxy.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(10)
            assert connection.recv(1) == b""
