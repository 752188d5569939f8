"""Health from a worker's record and its age, and the capacity that follows."""

import pytest

from holdfast.core.workers import (
    Health,
    WorkerRecord,
    addressee,
    health,
    usable_slots,
    worker_queue,
)

HEALTHY, DEGRADED, UNHEALTHY = Health.HEALTHY, Health.DEGRADED, Health.UNHEALTHY


def a_record(**facts: object) -> WorkerRecord:
    fixed = {"name": "w", "id": "1", "host": "h", "pid": 1, "started_at": 0}
    return WorkerRecord(**fixed | facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "age_ms", "state", "why"),
    [
        ({}, 0, HEALTHY, ""),
        ({}, 30_000, HEALTHY, ""),
        ({}, 30_001, DEGRADED, "no heartbeat for 30 s"),
        ({}, 60_000, DEGRADED, "no heartbeat for 60 s"),
        ({}, 60_001, UNHEALTHY, "no heartbeat for 60 s"),
        ({"consecutive_failures": 2}, 0, HEALTHY, ""),
        ({"consecutive_failures": 3}, 0, DEGRADED, "3 failures in a row"),
        ({"consecutive_failures": 9}, 0, DEGRADED, "9 failures in a row"),
        ({"consecutive_failures": 10}, 0, UNHEALTHY, "10 failures in a row"),
        ({"failure_rate": 0.29}, 0, HEALTHY, ""),
        ({"failure_rate": 0.3}, 0, DEGRADED, "30% of its attempts fail"),
        ({"failure_rate": 0.69}, 0, DEGRADED, "69% of its attempts fail"),
        ({"failure_rate": 0.7}, 0, UNHEALTHY, "70% of its attempts fail"),
        ({"blocked": "stuck"}, 0, UNHEALTHY, "stuck"),
        ({"cordoned": True}, 0, HEALTHY, ""),
        ({"failure_rate": 0.3, "consecutive_failures": 10}, 0, UNHEALTHY, "10 failures in a row"),
    ],
)
def test_the_health_of_a_worker(
    facts: dict[str, object], age_ms: int, state: Health, why: str
) -> None:
    assert health(a_record(**facts), age_ms) == (state, why)


@pytest.mark.parametrize(
    ("unattended_ms", "state", "why"),
    [
        (29_999, HEALTHY, ""),
        (30_000, UNHEALTHY, "it has not received from its queue at the broker for 30 s"),
    ],
)
def test_a_worker_that_does_not_receive(unattended_ms: int, state: Health, why: str) -> None:
    assert health(a_record(), 0, unattended_ms) == (state, why)
    record = a_record(blocked="stuck")
    assert health(record, 0, unattended_ms) == (UNHEALTHY, "stuck"), "what the worker says is first"


@pytest.mark.parametrize(
    ("free", "slots"), [(0, (0, 0, 0)), (1, (1, 1, 0)), (2, (2, 1, 0)), (9, (9, 5, 0))]
)
def test_capacity_in_each_state(free: int, slots: tuple[int, ...]) -> None:
    assert tuple(usable_slots(free, state) for state in (HEALTHY, DEGRADED, UNHEALTHY)) == slots


def test_a_worker_and_its_own_queue() -> None:
    assert addressee(worker_queue("nightly-1")) == "nightly-1"
    assert addressee("default") is None
    assert addressee("workers") is None
