"""Rerouting: the healthiest, then the least loaded worker that fits, and the text of the move."""

from typing import Any

import pytest

from holdfast.core import routing
from holdfast.core.explain import ABSENT_MS, SeenWorker
from holdfast.core.model import Job, Overrides, Reroute
from holdfast.core.workers import DEGRADED_FAILURES, UNHEALTHY_FAILURES, WorkerRecord

JOB = Job(id="j", task="t", queue="worker.a", created_at=1_000, expires_at=301_000)


def seen(name: str, age_ms: int = 0, **fields: Any) -> SeenWorker:
    plain: dict[str, Any] = {"tasks": ("t",), "capacity": 10}
    record = WorkerRecord(name=name, id=name, host="h", pid=1, started_at=0, **{**plain, **fields})
    return SeenWorker(record=record, age_ms=age_ms)


def chosen(
    *workers: SeenWorker, labels: dict[str, str] | None = None, **waiting: int
) -> str | None:
    there = {each.record.name: 0 for each in workers}
    return routing.choose_worker(JOB, workers, labels or {}, {**there, **waiting})


@pytest.mark.parametrize(
    "unfit",
    [
        seen("a"),
        seen("b", stopping=True),
        seen("b", cordoned=True),
        seen("b", age_ms=ABSENT_MS + 1),
        seen("b", consecutive_failures=UNHEALTHY_FAILURES),
        seen("b", blocked="its disk is full"),
        seen("b", tasks=("another",)),
    ],
)
def test_who_cannot_take_it_is_not_chosen(unfit: SeenWorker) -> None:
    assert chosen(unfit) is None
    assert chosen(unfit, seen("z", running=10)) == "z", "a full one is better than none"


def test_health_goes_before_load_and_load_before_the_name() -> None:
    degraded = seen("b", consecutive_failures=DEGRADED_FAILURES)
    assert chosen(degraded, seen("c", running=9)) == "c"
    assert chosen(seen("b", running=3), seen("c", running=2)) == "c"
    assert chosen(seen("b", prefetched=3), seen("c", running=2)) == "c"
    assert chosen(seen("b"), seen("c"), b=1) == "c", "jobs waiting for it count"
    assert chosen(seen("b", running=2), seen("c", capacity=100, running=9)) == "c"
    assert chosen(seen("c"), seen("b")) == "b"


def test_every_label_asked_for_must_be_there() -> None:
    eu = seen("b", labels={"zone": "eu", "disk": "ssd"}, running=5)
    assert chosen(eu, seen("c"), labels={"zone": "eu"}) == "b"
    assert chosen(eu, seen("c"), labels={"zone": "us"}) is None


def test_a_worker_without_a_queue_of_its_own_gets_nothing() -> None:
    assert routing.choose_worker(JOB, [seen("b")], {}, {}) is None


def test_the_time_stays_the_same_at_every_worker() -> None:
    policy = Reroute(labels={"zone": "eu"})
    first = routing.reroute_to(JOB, policy, "b")
    assert (first.queue, first.expires_ms) == ("worker.b", 300_000)
    assert first.text == "not taken within its TTL of 5m"
    assert first.reroute == Reroute(labels={"zone": "eu"}, done=1, ttl_ms=300_000)
    later = Job(
        id="j", task="t", queue="worker.b", created_at=1_000, expires_at=601_000, attempt=2,
        overrides=Overrides(reroute=first.reroute),
    )  # fmt: skip
    assert first.reroute is not None
    second = routing.reroute_to(later, first.reroute, "c")
    assert (second.expires_ms, second.text) == (300_000, "not finished within its TTL of 5m")
    assert second.reroute == Reroute(labels={"zone": "eu"}, done=2, ttl_ms=300_000)


def test_why_it_died_all_the_same() -> None:
    assert routing.reroutes_left(None) == 0
    assert routing.reroutes_left(Reroute(most=3, done=1)) == 2
    assert routing.reroutes_left(Reroute(most=3, done=5)) == 0
    assert "zone=eu" in routing.why_not_rerouted(Reroute(labels={"zone": "eu"}))
    assert "rerouted 3 times" in routing.why_not_rerouted(Reroute(done=3))
