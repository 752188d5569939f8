"""Batches over REST."""

from typing import Any

import pytest

from holdfast.core.model import JobFilter, Queue
from tests.server.rest_client import RestClient, verdict

BATCHES = "/v1/batches"


async def test_the_last_job_starts_when_all_others_have_ended(rest: RestClient) -> None:
    body = {"jobs": [{"task": "t", "id": f"j{at}"} for at in range(3)], "then": {"task": "u"}}
    taken = await rest.post(BATCHES, body, status=201)
    assert taken["jobs"] == ["j0", "j1", "j2"]
    where = f"{BATCHES}/{taken['id']}"
    assert await rest.get(where) == {
        "id": taken["id"], "state": "waiting",
        "total": 3, "done": 0, "dead": 0, "cancelled": 0, "left": 3,
    }  # fmt: skip
    first, second, third = await rest.lease(limit=10)
    await rest.settle(verdict(first, "complete"), verdict(second, "bury", error="no"))
    told = await rest.get(where)
    assert (told["done"], told["dead"], told["left"]) == (1, 1, 1)
    assert await rest.lease() == []
    await rest.settle(verdict(third, "complete"))
    [last] = await rest.lease()
    assert last["job"]["id"] == taken["id"]


async def test_a_repeated_batch_with_ids_adds_nothing(rest: RestClient) -> None:
    body = {"jobs": [{"task": "t", "id": "a"}], "then": {"task": "u", "id": "z"}}
    first = await rest.post(BATCHES, body, status=201)
    assert await rest.post(BATCHES, body, status=201) == first == {"id": "z", "jobs": ["a"]}
    assert len((await rest.store.find(JobFilter(), limit=10)).jobs) == 2


async def test_a_batch_may_need_several_transactions(rest: RestClient) -> None:
    body = {"jobs": [{"task": "t"} for _ in range(1_500)], "then": {"task": "u", "id": "z"}}
    taken = await rest.post(BATCHES, body, status=201)
    assert len(set(taken["jobs"])) == 1_500
    assert (await rest.get(f"{BATCHES}/z"))["total"] == 1_500


async def test_a_partly_enqueued_batch_is_outcome_unknown(rest: RestClient) -> None:
    await rest.store.declare(Queue(name="small", max_depth=2))
    jobs = [{"task": "t", "queue": "small"}] * 3
    body = {"jobs": jobs, "then": {"task": "u"}}
    # Else the same key would be good for two more.
    assert await rest.refused("POST", BATCHES, body) == (504, "outcome_unknown")
    body = {"jobs": jobs, "then": {"task": "u", "queue": "small"}}
    assert await rest.refused("POST", BATCHES, body) == (429, "queue_full")
    assert len((await rest.store.find(JobFilter(), limit=10)).jobs) == 2


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({"jobs": [], "then": {"task": "t"}}, (400, "invalid_request")),
        ({"jobs": [{"task": "t"}]}, (400, "invalid_request")),
        ({"jobs": [{"task": "t"}, {}], "then": {"task": "t"}}, (422, "invalid_job")),
        ({"jobs": [{"task": "t"}], "then": {"task": "t", "after": ["x"]}}, (422, "invalid_job")),
        ({"jobs": [{"task": "t", "queue": "no"}], "then": {"task": "t"}}, (404, "unknown_queue")),
    ],
)
async def test_invalid_batches_are_refused(
    rest: RestClient, body: dict[str, Any], refusal: Any
) -> None:
    assert await rest.refused("POST", BATCHES, body) == refusal


async def test_a_job_without_dependencies_is_not_a_batch(rest: RestClient) -> None:
    await rest.enqueue({"id": "a"})
    assert await rest.refused("GET", f"{BATCHES}/a") == (404, "not_found")
    assert await rest.refused("GET", f"{BATCHES}/none") == (404, "not_found")
