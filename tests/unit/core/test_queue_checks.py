"""Checks of the limits, rates and fairness settings of a queue."""

from typing import Any

import pytest

from holdfast.core import bounds
from holdfast.core.checks import check_queue
from holdfast.core.limits import Limit, Rate
from holdfast.core.model import Queue
from holdfast.errors import InvalidQueue


def bounded(**fields: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"name": "l", "concurrency": 1} | fields
    return {"limits": (Limit(**given),)}


def paced(**fields: Any) -> dict[str, Any]:
    return bounded(rate=Rate(**{"count": 1, "per_ms": 1_000} | fields))


@pytest.mark.parametrize(
    "settings",
    [
        bounded(),
        bounded(key="{tenant}:{region}", task="mail:send"),
        bounded(concurrency=bounds.SLOTS_MAX),
        paced(),
        paced(count=bounds.RATE_COUNT_MAX, per_ms=1, burst=bounds.RATE_COUNT_MAX),
        paced(per_ms=bounds.DAY_MS),
        {"fairness": "shares", "weights": {"x": 1, "é": bounds.WEIGHT_MAX}},
        {"fairness": "noisy"},
        {"limits": tuple(Limit(name=f"l{n}", concurrency=1) for n in range(bounds.LIMITS_MAX))},
        {"aging_ms": 1, "group_batch": bounds.GROUP_BATCH_MAX},
    ],
)
def test_within_bounds(settings: dict[str, Any]) -> None:
    check_queue(Queue(name="q", **settings))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (bounded(concurrency=0), "to stop a queue, pause it"),
        (bounded(concurrency=bounds.SLOTS_MAX + 1), "concurrency"),
        (bounded(concurrency=None), "limits nothing"),
        (bounded(name=""), "limit name"),
        (bounded(task="a b"), "task"),
        (bounded(key="x" * 257), "256 bytes"),
        (bounded(key="\0"), "NUL"),
        (bounded(key="{a.b}"), "plain field"),
        (paced(count=0), "to stop a queue, pause it"),
        (paced(count=bounds.RATE_COUNT_MAX + 1), "rate"),
        (paced(per_ms=0), "per 0 ms"),
        (paced(per_ms=bounds.DAY_MS + 1), "per"),
        (paced(burst=0), "burst 0"),
        ({"fairness": "equal"}, "off, shares or noisy"),
        ({"weights": {"x": 0}}, "weight 0"),
        ({"weights": {"x": bounds.WEIGHT_MAX + 1}}, "weight"),
        ({"weights": {"\ud800": 1}}, "surrogate"),
        ({"limits": (Limit(name="l", concurrency=1),) * 2}, "two limits"),
        ({"aging_ms": 0}, "aging_ms"),
        ({"group_batch": 0}, "group_batch"),
        ({"group_batch": bounds.GROUP_BATCH_MAX + 1}, "group_batch"),
    ],
)
def test_out_of_bounds(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidQueue, match=text):
        check_queue(Queue(name="q", **settings))
