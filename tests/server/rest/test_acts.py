"""Acts on many jobs over REST, carried out by upkeep."""

from typing import Any

import pytest

from holdfast.core.model import State
from holdfast.upkeep import Amender
from tests.server.rest.test_dead_letters import die, state
from tests.server.rest_client import RestClient

ACTS = "/v1/acts"


async def run_to_the_end(rest: RestClient, id_: str) -> Any:
    """As upkeep does, wherever it runs."""
    await rest.post(f"{ACTS}/{id_}/run")
    amender = Amender(rest.store, rest.clock.wall_ms)
    while await amender.once() == 0:
        pass
    return await rest.get(f"{ACTS}/{id_}")


async def test_an_act_is_counted_run_and_shown(rest: RestClient) -> None:
    await rest.post("/v1/queues", {"name": "mail"}, status=201)
    await rest.enqueue({"id": "a"}, {"id": "b", "labels": {"x": "y"}}, queue="mail")
    await rest.enqueue({"id": "c"})
    body = {"act": "cancel", "filter": {"queue": "mail", "state": ["waiting"]}, "text": "why"}
    act = await rest.post(ACTS, body, status=201)
    assert act["says"] == "Cancel 2 waiting jobs in queue mail"
    assert {name: act[name] for name in ("act", "state", "count", "capped", "by", "left")} == {
        "act": "cancel",
        "state": "counted",
        "count": 2,
        "capped": False,
        "by": "local",
        "left": 2,
    }
    assert (act["states"], act["notes"], act["ended_at"]) == ({"waiting": 2}, [], None)
    assert await rest.get(f"{ACTS}/{act['id']}") == act
    assert await rest.get(ACTS) == {"acts": [act]}
    assert await state(rest, "a") is State.WAITING
    running = await rest.post(f"{ACTS}/{act['id']}/run")
    assert running["state"] == "running"
    assert running["started_at"]
    ended = await run_to_the_end(rest, act["id"])
    found = [ended[name] for name in ("state", "done", "changed_since", "failed", "left")]
    assert found == ["done", 2, 0, 0, 0]
    assert [await state(rest, id_) for id_ in "abc"] == [
        State.CANCELLED,
        State.CANCELLED,
        State.WAITING,
    ]
    assert await rest.refused("POST", f"{ACTS}/{act['id']}/run") == (409, "wrong_state")
    assert await rest.post(f"{ACTS}/{act['id']}/stop") == ended
    entries = (await rest.get("/v1/audit"))["acts"]
    by_what = {each["what"]: (each["on"], each["changed"]) for each in entries}
    words = f"{act['id']}: {act['says']}; reason: why"
    assert by_what["act.run"] == (words, None)
    assert by_what["act.done"] == (words, 2)


@pytest.mark.parametrize(
    ("filter", "ids"),
    [
        ({"label": ["x=y"]}, "b"),
        ({"state": ["scheduled"]}, "c"),
        ({"contains": "needle"}, "d"),
        ({"search": "t2"}, "d"),
        ({"task": "t", "tenant": "acme"}, "b"),
        ({}, "abcd"),
    ],
)
async def test_filters_are_those_of_the_list(
    rest: RestClient, filter: dict[str, Any], ids: str
) -> None:
    await rest.enqueue(
        {"id": "a"},
        {"id": "b", "labels": {"x": "y"}, "tenant": "acme"},
        {"id": "c", "delay": 60},
        {"id": "d", "task": "t2", "payload": {"in": "a needle"}},
    )
    listed = await rest.get("/v1/jobs", **filter)
    assert sorted(job["id"] for job in listed["jobs"]) == list(ids)
    act = await rest.post(ACTS, {"act": "delete", "filter": filter}, status=201)
    assert act["count"] == len(ids)
    assert (await run_to_the_end(rest, act["id"]))["done"] == len(ids)
    left = (await rest.get("/v1/jobs"))["jobs"]
    assert sorted(job["id"] for job in left) == sorted(set("abcd") - set(ids))


async def test_selected_jobs_are_edited_and_retried(rest: RestClient) -> None:
    await die(rest, "a", "b", payload={"n": 1, "old": True})
    body = {"act": "edit", "ids": ["a", "none"], "patch": {"old": None, "n": 2}, "priority": 3}
    act = await rest.post(ACTS, body, status=201)
    assert (act["says"], act["count"]) == (
        "Edit the payload and priority of 1 selected dead job",
        1,
    )
    assert (await run_to_the_end(rest, act["id"]))["done"] == 1
    job = await rest.job("a")
    assert (job.payload, job.priority, job.state) == (b'{"n":2}', 3, State.DEAD)
    retry = await rest.post(ACTS, {"act": "retry", "ids": ["a"], "delay": "1m"}, status=201)
    assert retry["says"] == "Put back 1 selected dead job, after 1m"
    assert (await run_to_the_end(rest, retry["id"]))["done"] == 1
    assert [await state(rest, id_) for id_ in "ab"] == [State.WAITING, State.DEAD]


async def test_running_jobs_are_explained(rest: RestClient) -> None:
    await rest.enqueue({"id": "a"}, {"id": "b"})
    await rest.lease()
    act = await rest.post(ACTS, {"act": "cancel", "filter": {"queue": "default"}}, status=201)
    assert act["says"] == "Cancel 2 jobs in queue default"
    assert act["states"] == {"waiting": 1, "leased": 1}
    assert act["notes"][0].startswith("1 job of these is running: workers are asked to stop")
    delete = await rest.post(ACTS, {"act": "delete", "filter": {}}, status=201)
    assert delete["count"] == 1
    forced = await rest.post(ACTS, {"act": "delete", "filter": {}, "force": True}, status=201)
    assert forced["count"] == 2


async def test_a_counted_act_can_be_dropped(rest: RestClient) -> None:
    await rest.enqueue({"id": "a"})
    act = await rest.post(ACTS, {"act": "cancel", "filter": {}}, status=201)
    stopped = await rest.post(f"{ACTS}/{act['id']}/stop")
    assert (stopped["state"], stopped["text"], stopped["done"]) == ("stopped", "by local", 0)
    assert stopped["ended_at"]
    assert await rest.post(f"{ACTS}/{act['id']}/stop") == stopped


async def test_unknown_acts_are_not_found(rest: RestClient) -> None:
    assert await rest.refused("GET", f"{ACTS}/none") == (404, "not_found")
    assert await rest.refused("POST", f"{ACTS}/none/run") == (404, "not_found")
    assert await rest.refused("POST", f"{ACTS}/none/stop") == (404, "not_found")


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({"act": "cancel"}, (422, "usage")),
        ({"act": "cancel", "filter": {}, "ids": ["a"]}, (422, "usage")),
        ({"act": "cancel", "filter": {}, "delay": 1}, (422, "usage")),
        ({"act": "cancel", "filter": {}, "patch": None}, (422, "usage")),
        ({"act": "delay", "filter": {}}, (422, "usage")),
        ({"act": "move", "filter": {}}, (422, "usage")),
        ({"act": "move", "filter": {}, "queue": "none"}, (404, "unknown_queue")),
        ({"act": "edit", "filter": {}}, (422, "usage")),
        ({"act": "edit", "filter": {}, "priority": 101}, (400, "invalid_request")),
        ({"act": "bury", "filter": {}}, (400, "invalid_request")),
        ({"act": "cancel", "ids": []}, (400, "invalid_request")),
        ({"act": "cancel", "filter": {"view": "row"}}, (400, "invalid_request")),
        ({"act": "cancel", "filter": {}, "text": "x" * 1_001}, (400, "invalid_request")),
    ],
)
async def test_invalid_acts_are_refused(
    rest: RestClient, body: dict[str, Any], refusal: tuple[int, str]
) -> None:
    assert await rest.refused("POST", ACTS, body) == refusal
    assert await rest.get(ACTS) == {"acts": []}


async def test_an_act_without_jobs_is_done_at_once(rest: RestClient) -> None:
    act = await rest.post(ACTS, {"act": "cancel", "filter": {"task": "none"}}, status=201)
    assert (act["count"], act["says"]) == (0, "Cancel 0 jobs of task none")
    assert (await run_to_the_end(rest, act["id"]))["state"] == "done"
