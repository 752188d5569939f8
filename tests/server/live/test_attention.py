"""Attention items from facts: one for each problem, with a remedy that exists."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from holdfast.cli import run
from holdfast.core.breaker import BreakerRecord, BreakerState
from holdfast.core.model import Queue, QueueView
from holdfast.core.workers import Health, WorkerRecord
from holdfast.engines.extras import PartitionView
from holdfast.ops.alerts import STALE_MS, Alert
from holdfast.ops.breakers import StoredBreaker
from holdfast.ops.gates import Gate, GateRun, GateState, gate_view
from holdfast.ops.queues import Pause
from holdfast.ops.workers import WorkerView
from holdfast.server.application import OPERATIONS
from holdfast.server.http.operation import Routes
from holdfast.server.live.attention import (
    PROBLEMS_MAX,
    Attention,
    AttentionFacts,
    attention,
)
from holdfast.telemetry.recent import QueueRecent

AT = 1_800_000_000_000


def queue(name: str = "mail", *, paused: bool = False, **counts: Any) -> QueueView:
    return QueueView(queue=Queue(name=name, paused=paused), **counts)


def worker(name: str = "w", *, age_ms: int = 0, version: str = "1", **more: Any) -> WorkerView:
    queues = more.pop("queues", {"mail": 1})
    health, why = more.pop("health", (Health.HEALTHY, ""))
    record = WorkerRecord(
        name=name, id="i", host="h", pid=1, started_at=0, version=version, queues=queues, **more
    )
    return WorkerView(record=record, age_ms=age_ms, health=health, why=why)


def alert(rule: str = "no_worker", about: str = "mail", queue: str = "mail") -> Alert:
    return Alert(
        rule=rule,
        about=about,
        queue=queue,
        severity="critical",
        unit="jobs",
        value=7,
        threshold=1,
        text="an alert",
        raised_at=AT,
        seen_at=AT,
    )


def found(**facts: Any) -> list[Attention]:
    return attention(AttentionFacts(operates=True, **facts))


def only(**facts: Any) -> Attention:
    [item] = found(**facts)
    return item


def breaker(state: BreakerState, **more: Any) -> StoredBreaker:
    return StoredBreaker(BreakerRecord(state=state, **more), 1, 0.0)


def gate(name: str = "in", *, paused: bool = False, state: GateState | None = None) -> Any:
    held = Gate(
        name=name, direction="inlet", broker="main", queue="mail", source="s", paused=paused
    )
    runs = [] if state is None else [GateRun(gate=name, queue="mail", state=state, text="no route")]
    return gate_view(held, runs)


def test_nothing_needs_attention_in_a_healthy_store() -> None:
    assert not found(
        views=[queue(ready=5, leased=2), queue("idle"), queue("stopped", paused=True)],
        workers=[worker()],
        breakers={"task:t": breaker(BreakerState.CLOSED)},
        gates=[gate(state=GateState.RUNNING)],
        partitions=[PartitionView(name="a", waiting=0)],
        recent={"mail": QueueRecent(dead=2)},
        version="1",
    )


def test_a_queue_with_ready_jobs_needs_a_worker() -> None:
    item = only(views=[queue(ready=3)])
    assert (item.kind, item.severity, item.queue, item.count) == ("no_worker", "warn", "mail", 3)
    assert item.command == "worker start --queues mail"
    assert not found(views=[queue(delayed=3)])
    for absent in (
        worker(cordoned=True),
        worker(stopping=True),
        worker(queues={"other": 1}),
    ):
        assert only(views=[queue(ready=3)], workers=[absent]).kind == "no_worker"
    # Programs that lease without a worker's record.
    assert not found(views=[queue(ready=3, leased=1)])
    assert not found(views=[queue(ready=3)], recent={"mail": QueueRecent(leased=1)})
    assert only(views=[queue(ready=3, leased=1, overdue=1)]).kind == "no_worker"
    assert only(views=[queue("worker.w9", ready=1)]).command == "worker start --name w9"


def test_a_paused_queue_with_jobs_can_be_resumed() -> None:
    pause = Pause(by="ann", text="a migration", at=AT)
    item = only(views=[queue(paused=True, ready=1, delayed=1)], pauses={"mail": pause})
    assert item.kind == "queue_paused"
    assert "by ann: a migration" in item.text
    assert (item.since, item.count) == ("2027-01-15T08:00:00Z", 2)
    assert item.act
    assert (item.act.method, item.act.path) == ("POST", "/v1/queues/mail/resume")


def test_an_old_job_is_noticed_before_there_is_an_alert() -> None:
    view = queue(ready=1, leased=1, oldest_age_ms=11 * 60_000)
    item = only(views=[view])
    assert (item.kind, item.severity) == ("oldest_age", "info")
    assert not found(views=[queue(ready=1, leased=1, oldest_age_ms=9 * 60_000)])


@pytest.mark.parametrize(
    ("dead", "before", "is_spike"),
    [
        (5, None, True),
        (4, None, False),
        (None, None, False),
        (30, 10.0, False),
        (31, 10.0, True),
        (5, 0.0, True),
    ],
)
def test_a_spike_of_dead_letters(dead: int | None, before: float | None, is_spike: bool) -> None:
    items = found(views=[queue()], recent={"mail": QueueRecent(dead=dead, dead_before=before)})
    assert [item.kind for item in items] == ["dead_letters"] * is_spike


def test_an_alert_replaces_the_condition_of_the_same_kind() -> None:
    item = only(views=[queue(ready=3)], alerts=[(alert(), 0)])
    assert (item.severity, item.text, item.count) == ("critical", "an alert", 7)
    assert item.since == "2027-01-15T08:00:00Z"
    assert item.command == "worker start --queues mail"
    both = found(views=[queue(ready=3)], alerts=[(alert(about="x", queue="x"), 0)])
    assert [each.queue for each in both] == ["x", "mail"]
    # No server checks it any more.
    assert only(views=[queue(ready=3)], alerts=[(alert(), STALE_MS + 1)]).severity == "warn"


@pytest.mark.parametrize("paused", [False, True])
def test_a_queue_where_no_job_starts_is_one_problem(paused: bool) -> None:
    rules = ("oldest_age", "depth") if paused else ("oldest_age", "depth", "no_worker")
    alerts = [(alert(rule), 0) for rule in rules]
    view = queue(ready=5, oldest_age_ms=11 * 60_000, paused=paused)
    [item] = found(views=[view], alerts=alerts)
    assert item.kind == ("queue_paused" if paused else "no_worker")
    assert item.severity == "critical"


@pytest.mark.parametrize(
    ("by", "remedy"),
    [
        ("", "wait for the next probe, or close it if the cause is fixed"),
        ("ana", "close it if the cause is fixed"),
    ],
)
def test_only_a_breaker_that_opened_by_itself_is_probed(by: str, remedy: str) -> None:
    [item] = found(breakers={"task:t": breaker(BreakerState.OPEN, by=by)})
    assert item.remedy == remedy


def test_partitions_breakers_gates_and_workers() -> None:
    items = found(
        partitions=[PartitionView(name="b", waiting=0, out_ms=5, text="disk is gone")],
        breakers={
            "host:a.example:443": breaker(BreakerState.OPEN, streak=5, last="x" * 900),
            "task:t": breaker(BreakerState.HALF_OPEN),
        },
        gates=[
            gate("failing", state=GateState.FAILING),
            gate("paused", paused=True),
            gate("unserved"),
            gate("held", state=GateState.HELD),
        ],
        workers=[
            worker("a", health=(Health.UNHEALTHY, "10 failures in a row")),
            worker("b", health=(Health.UNHEALTHY, "no heartbeat for 99 s"), age_ms=99_000),
            worker("c", health=(Health.DEGRADED, "3 failures in a row"), version="2"),
            worker("d", health=(Health.UNHEALTHY, "x"), stopping=True),
        ],
        version="1",
    )
    assert [(item.severity, item.kind, item.name or "") for item in items] == [
        ("critical", "gate_failing", "failing"),
        ("critical", "partition_out", "b"),
        ("warn", "breaker_open", "host:a.example:443"),
        ("warn", "breaker_open", "task:t"),
        ("warn", "gate_paused", "paused"),
        ("warn", "gate_unserved", "unserved"),
        ("warn", "worker_unhealthy", "a"),
        ("warn", "worker_unhealthy", "b"),
        ("info", "gate_held", "held"),
        ("info", "version_skew", ""),
        ("info", "worker_degraded", "c"),
    ]
    assert all(len(item.text) <= 500 for item in items)
    # A silent worker's text does not change from second to second.
    assert "99" not in items[7].text
    paths = {item.name: item.act.path for item in items if item.act}
    assert paths == {
        "host:a.example:443": "/v1/breakers/host%3Aa.example%3A443/close",
        "task:t": "/v1/breakers/task%3At/close",
        "paused": "/v1/gates/paused/resume",
    }


def every_item() -> list[Attention]:
    rules = [
        *("dead_letters", "dead_depth", "depth", "oldest_age", "no_worker", "retention"),
        *("in_flight", "partition_out", "disk_floor", "dead_messages", "dead_message_depth"),
        *("unreadable_records", "a_rule_of_another_version"),
    ]
    return found(
        views=[queue(ready=1), queue("p", paused=True, ready=1), queue("worker.w", ready=1)],
        alerts=[(alert(rule), 0) for rule in rules],
        breakers={"task:a b": breaker(BreakerState.OPEN)},
        gates=[gate("p", paused=True), gate("f", state=GateState.FAILING), gate("u"), gate("h")],
        workers=[worker("a b", health=(Health.DEGRADED, "x"), version="2")],
        version="1",
    )


def test_every_act_is_an_operation() -> None:
    routes: Routes[Any] = Routes()
    for operation in OPERATIONS:
        routes.add(operation.method, operation.path, operation)
    acts = [item.act for item in every_item() if item.act]
    assert len(acts) == 3
    for act in acts:
        operation, _ = routes.find(act.method, act.path.encode())
        if operation.body is not None:
            msgspec.convert(act.body, operation.body)


def test_every_command_exists(capfd: pytest.CaptureFixture[str]) -> None:
    commands = {item.command for item in every_item()}
    assert len(commands) > 12
    for command in commands:
        assert command
        words = [word for word in command.split() if not word.startswith("-")]
        assert (
            run(
                [
                    *words[
                        : 1 if words[0] in ("doctor", "up", "status", "scaling", "cleanup") else 2
                    ],
                    "--help",
                ]
            )
            == 0
        )
        text = capfd.readouterr().out
        for flag in (word for word in command.split() if word.startswith("--")):
            assert flag in text, command


def test_a_caller_that_does_not_operate_gets_no_act() -> None:
    facts = AttentionFacts(views=[queue(paused=True, ready=1)])
    [item] = attention(facts)
    assert item.act is UNSET
    assert item.command == "queue resume mail"


def test_the_number_of_items_is_bounded() -> None:
    items = found(views=[queue(f"q{number:04}", ready=1) for number in range(1_000)])
    assert len(items) == PROBLEMS_MAX
    assert (items[-1].kind, items[-1].count) == ("more", 1_000 - PROBLEMS_MAX + 1)
