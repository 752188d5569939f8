"""Workers over REST: lists and orders."""

from typing import Any

import msgspec
import pytest

from holdfast.core.model import Record
from holdfast.core.workers import KIND, WorkerRecord
from holdfast.ops.workers import Workers
from tests.server.rest_client import RestClient

WORKERS = "/v1/workers"


async def come(rest: RestClient, *names: str, **said: Any) -> None:
    """As if workers of these names were there."""
    for name in names:
        record = WorkerRecord(
            name=name, id=f"{name}-1", host="h", pid=7, started_at=0,
            **{"queues": {"default": 1}, "capacity": 4, **said},
        )  # fmt: skip
        saved = Record(kind=KIND, key=name, value=msgspec.json.encode(record))
        await rest.store.save([saved])


async def test_workers_are_listed_and_shown(rest: RestClient) -> None:
    await come(rest, "a", "b", consecutive_failures=3)
    listed = (await rest.get(WORKERS))["workers"]
    assert [(each["name"], each["health"], each["why"]) for each in listed] == [
        ("a", "degraded", "3 failures in a row"),
        ("b", "degraded", "3 failures in a row"),
    ]
    assert (listed[0]["started_at"], listed[0]["capacity"]) == ("1970-01-01T00:00:00Z", 4)
    assert await rest.get(f"{WORKERS}/a") == listed[0]
    assert await rest.refused("GET", f"{WORKERS}/c") == (404, "not_found")


@pytest.mark.parametrize("order", ["stop", "drain"])
async def test_one_worker_is_stopped(rest: RestClient, order: str) -> None:
    await come(rest, "a", "b")
    body = {"order": order, "workers": ["a", "nobody"]}
    asked = await rest.post(f"{WORKERS}/orders", body)
    assert asked == {"workers": ["a"], "missing": ["nobody"]}
    orders = await Workers(rest.store).orders()
    assert set(orders) == {"a"}
    assert (orders["a"].ending, orders["a"].ending_id, orders["a"].by) == (order, "a-1", "local")


async def test_a_stop_has_a_grace_period(rest: RestClient) -> None:
    await come(rest, "a", "b")
    await rest.post(f"{WORKERS}/orders", {"order": "stop", "all": True, "grace": "2s"})
    orders = await Workers(rest.store).orders()
    assert [order.grace_ms for order in orders.values()] == [2_000, 2_000]


async def test_all_workers_are_cordoned_and_one_uncordoned(rest: RestClient) -> None:
    await come(rest, "a", "b")
    asked = await rest.post(f"{WORKERS}/orders", {"order": "cordon", "all": True})
    assert asked == {"workers": ["a", "b"], "missing": []}
    await rest.post(f"{WORKERS}/orders", {"order": "uncordon", "workers": ["b"]})
    listed = (await rest.get(WORKERS))["workers"]
    assert [(each["name"], each["cordoned"]) for each in listed] == [("a", True), ("b", False)]


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({"order": "stop"}, (422, "usage")),
        ({"order": "stop", "workers": ["a"], "all": True}, (422, "usage")),
        ({"order": "stop", "workers": []}, (400, "invalid_request")),
        ({"order": "stop", "workers": ["a"], "grace": "soon"}, (400, "invalid_request")),
        ({"order": "drain", "workers": ["a"], "grace": 5}, (422, "usage")),
        ({"order": "dance", "all": True}, (400, "invalid_request")),
        ({"order": "stop", "workers": ["nobody"]}, (404, "not_found")),
        (None, (400, "invalid_request")),
    ],
)
async def test_invalid_orders_are_refused(
    rest: RestClient, body: Any, refusal: tuple[int, str]
) -> None:
    await come(rest, "a")
    answer = await rest.client.post(f"{WORKERS}/orders", json=body)
    assert answer.status_code == refusal[0] or body is None
    assert await Workers(rest.store).orders() == {}
