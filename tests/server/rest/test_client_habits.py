"""Habits of clients in other languages: a key on every POST, repeated labels, missing bodies."""

from typing import Any

import pytest

from holdfast.server.http import idempotency
from tests.server.rest_client import RestClient

JSON = "application/json"
KEY = {"Idempotency-Key": "k-1"}


async def keyed(rest: RestClient, path: str, body: Any) -> tuple[int, Any]:
    answer = await rest.client.post(path, json=body, headers=KEY)
    return answer.status_code, answer.json()


@pytest.mark.parametrize("path", ["/v1/queues/default/jobs", "/v1/jobs"])
async def test_a_key_makes_an_enqueue_without_ids_repeatable(rest: RestClient, path: str) -> None:
    body = {"jobs": [{"task": "t"}, {"task": "t", "lease": 0}]}
    first = await keyed(rest, path, body)
    assert first[0] == 201
    assert await keyed(rest, path, body) == first
    status, answer = await keyed(rest, path, {"jobs": [{"task": "other"}]})
    assert (status, answer["error"]["code"]) == (422, "key_reused")
    assert len((await rest.get("/v1/jobs"))["jobs"]) == 1


async def test_an_enqueue_with_ids_needs_no_key(rest: RestClient) -> None:
    """A key that is sent anyway does not block after a crash of the server."""
    for path, body in (
        ("/v1/queues/default/jobs", {"jobs": [{"task": "t", "id": "a"}]}),
        ("/v1/jobs", {"jobs": [{"task": "t", "id": "b"}]}),
        ("/v1/batches", {"jobs": [{"task": "t", "id": "c"}], "then": {"task": "t", "id": "d"}}),
    ):
        assert (await keyed(rest, path, body))[0] == (await keyed(rest, path, body))[0] == 201
    assert await rest.store.load(idempotency.KIND, limit=10) == []
    assert len((await rest.get("/v1/jobs"))["jobs"]) == 4


async def test_a_repeated_cancel_with_its_key_has_the_same_answer(rest: RestClient) -> None:
    await rest.enqueue({"id": "a"})
    first = await keyed(rest, "/v1/jobs/a/cancel", {})
    assert first[0] == 200
    assert await keyed(rest, "/v1/jobs/a/cancel", {}) == first
    assert await rest.refused("POST", "/v1/jobs/a/cancel", {}) == (409, "wrong_state")


async def test_a_label_has_one_value(rest: RestClient) -> None:
    await rest.enqueue({"id": "a", "labels": {"region": "eu"}})
    found = await rest.client.get("/v1/jobs?label=region=eu&label=region=eu")
    assert [job["id"] for job in found.json()["jobs"]] == ["a"]
    found = await rest.client.get("/v1/jobs?label=region=us&label=region=eu")
    assert (found.status_code, found.json()["error"]["code"]) == (422, "usage")


@pytest.mark.parametrize(("limit", "more"), [(1, True), (2, False), (1000, False)])
async def test_a_tally_has_more_only_if_values_are_left(
    rest: RestClient, limit: int, more: bool
) -> None:
    await rest.enqueue({"task": "one"}, {"task": "two"})
    found = await rest.get("/v1/tally", by="task", limit=limit)
    assert (len(found["tallies"]), found["more"]) == (min(limit, 2), more)


async def test_rerouting_a_finished_job_is_wrong_state(rest: RestClient) -> None:
    await rest.enqueue({"id": "a"})
    await rest.post("/v1/jobs/a/cancel")
    refused = await rest.refused("POST", "/v1/jobs/a/reroute", {"to": "w"})
    assert refused == (409, "wrong_state")


async def test_a_missing_body_is_reported(rest: RestClient) -> None:
    answer = await rest.client.post("/v1/settle", content=b" ", headers={"content-type": JSON})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")
    assert answer.json()["error"]["message"] == "the body is empty: send application/json"


async def test_an_edit_without_effect_is_not_an_error(rest: RestClient) -> None:
    """A client that never saw the answer sends it again."""
    body = {"name": "s", "cron": "0 3 * * *", "job": {"task": "t", "payload": {"a": 1}}}
    await rest.post("/v1/schedules", body, status=201)
    change = {"job": {"payload": None}}
    first = await rest.ask("PATCH", "/v1/schedules/s", change)
    assert first["payload"] is None
    assert await rest.ask("PATCH", "/v1/schedules/s", change) == first
    nothings: list[dict[str, Any]] = [{}, {"job": {}}]
    for nothing in nothings:
        assert await rest.refused("PATCH", "/v1/schedules/s", nothing) == (422, "usage")


async def test_the_completing_job_is_not_part_of_the_batch(rest: RestClient) -> None:
    """It would have been taken for a repeat of the other, and never have been there."""
    body = {"jobs": [{"task": "t", "id": "z"}], "then": {"task": "last", "id": "z"}}
    assert await rest.refused("POST", "/v1/batches", body) == (422, "circular_jobs")
    assert (await rest.get("/v1/jobs"))["jobs"] == []


async def test_a_batch_waits_for_the_job_that_holds_a_key(rest: RestClient) -> None:
    await rest.enqueue({"id": "before", "key": "k"})
    jobs = [{"task": "t", "key": "k"}, {"task": "t", "key": "new"}, {"task": "t", "key": "new"}]
    body = {"jobs": jobs, "then": {"task": "last", "id": "z"}}
    taken = await rest.post("/v1/batches", body, status=201)
    assert taken["id"] == "z"
    assert taken["jobs"][0] == "before"
    assert taken["jobs"][1] == taken["jobs"][2]
    assert (await rest.job("z")).after == ("before", taken["jobs"][1])
    assert (await rest.get("/v1/batches/z"))["total"] == 2
    refused = {"jobs": [{"task": "t", "queue": "none"}], "then": {"task": "last", "id": "y"}}
    assert await rest.refused("POST", "/v1/batches", refused) == (404, "unknown_queue")
    assert await rest.store.get("y") is None
