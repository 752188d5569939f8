"""Leases over REST: which jobs, how many, and what happens if the client disconnects."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.model import Lease, LeaseRequest, NewJob, Queue, State
from holdfast.errors import EngineUnavailable
from holdfast.server.http import bounded_reply
from holdfast.server.settings import ServerSettings
from tests.server.rest_client import RestClient, rest_server, verdict


async def test_a_lease_has_all_fields_to_run_the_job(rest: RestClient) -> None:
    await rest.store.declare(Queue(name="mail", timeout_ms=9_000, max_attempts=6))
    said = {"id": "j", "payload": {"a": [1]}, "labels": {"x": "1"}, "tenant": "acme"}
    await rest.enqueue(said, queue="mail")
    [lease] = await rest.lease("default", "mail", limit=10, worker="w1", lease="45s")
    job = lease.pop("job")
    assert set(lease) == {"token", "lease_ms"}
    assert lease["lease_ms"] == 45_000
    assert lease["token"] == (await rest.job("j")).token
    assert job["id"] == "j"
    assert (job["queue"], job["task"], job["payload"]) == ("mail", "t", {"a": [1]})
    assert (job["attempts"], job["max_attempts"], job["timeout_ms"]) == (1, 6, 9_000)
    assert (job["labels"], job["tenant"], job["worker"]) == ({"x": "1"}, "acme", "w1")
    assert await rest.lease("default", "mail") == []


async def test_only_the_requested_tasks_or_ids_are_leased(rest: RestClient) -> None:
    await rest.enqueue({"id": "a", "task": "one"}, {"id": "b", "task": "two"}, {"id": "c"})
    [lease] = await rest.lease(limit=5, tasks=["two"])
    assert lease["job"]["id"] == "b"
    answer = await rest.post("/v1/lease", {"ids": ["c", "nobody"], "limit": 5})
    assert [each["job"]["id"] for each in answer["leases"]] == ["c"]
    body = {"ids": ["c"], "queues": ["default"]}
    assert await rest.refused("POST", "/v1/lease", body) == (422, "usage")


async def test_binary_payloads_are_base64(rest: RestClient) -> None:
    raw = NewJob(id="j", task="t", payload=b"\xff\x00", content_type="application/octet-stream")
    false = NewJob(id="k", task="t", payload=b"{nonsense")
    await rest.store.enqueue([raw, false])
    for lease, payload in zip(await rest.lease(limit=2), (raw.payload, false.payload), strict=True):
        assert lease["job"]["payload"] is None
        assert base64.b64decode(lease["job"]["payload_base64"]) == payload


async def test_dead_letters_are_leased_on_request(rest: RestClient) -> None:
    await rest.store.declare(Queue(name="grave"))
    await rest.store.declare(Queue(name="default", dead_queue="grave"))
    await rest.enqueue({"id": "j"})
    [lease] = await rest.lease()
    await rest.settle({"id": "j", "token": lease["token"], "verdict": "bury"})
    assert await rest.lease(queues=["grave", "default"]) == []
    for end in ("retry", "complete"):
        [lease] = await rest.lease(queues=["grave"], dead=True)
        job = lease["job"]
        assert (job["reason"], job["origin"], job["attempts"]) == ("explicit", "default", 1)
        settled = {"id": "j", "token": lease["token"], "verdict": end}
        extra = {"delay": 0} if end == "retry" else {}
        [outcome] = await rest.settle(settled | extra)
        assert outcome["outcome"] == "settled"
    assert await rest.store.get("j") is None


async def test_a_lease_that_waits_gets_the_next_job(rest: RestClient) -> None:
    waiting = asyncio.create_task(rest.lease(wait=30))
    await rest.get("/healthz")
    [id_] = await rest.enqueue()
    [lease] = await waiting
    assert lease["job"]["id"] == id_


async def test_an_empty_wait_ends_within_the_servers_bound(tmp_path: Path) -> None:
    settings = ServerSettings(wait_ms_max=50)
    async with rest_server("memory", tmp_path, settings) as rest:
        assert await rest.lease(wait="1h") == []
        [id_] = await rest.enqueue()
        assert (await rest.get(f"/v1/jobs/{id_}", wait=3600))["state"] == "waiting"


async def test_a_client_that_disconnected_while_waiting_gets_no_lease(rest: RestClient) -> None:
    leaving = asyncio.create_task(rest.lease(wait=30, worker="left"))
    await rest.get("/healthz")
    leaving.cancel()
    await asyncio.wait([leaving])
    [id_] = await rest.enqueue()
    [lease] = await rest.lease(wait=30, worker="stays")
    assert (lease["job"]["id"], lease["job"]["attempts"]) == (id_, 1)


async def test_leases_of_a_disconnected_client_are_released(
    rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client disconnects after the job is leased and before the answer is sent."""
    queues = rest.store.queues
    leased, left = asyncio.Event(), asyncio.Event()

    async def slow(**more: Any) -> Any:
        leased.set()
        await left.wait()
        return await queues(**more)

    await rest.enqueue({"id": "j"})
    monkeypatch.setattr(rest.store, "queues", slow)
    leaving = asyncio.create_task(rest.lease(worker="left"))
    await leased.wait()
    assert (await rest.job("j")).state is State.LEASED
    leaving.cancel()
    await asyncio.wait([leaving])
    [lease] = await _next_lease(rest)
    assert (lease.job.attempt, lease.job.worker) == (1, "stays")
    left.set()


async def test_undelivered_leases_are_released(
    rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves in the very moment in which the server has its answer."""
    take = rest.store.lease
    leaving: list[asyncio.Task[Any]] = []

    async def taken(request: LeaseRequest) -> list[Lease]:
        leases = await take(request)
        if request.worker == "left" and leases:
            leaving[0].cancel()
            await asyncio.wait(leaving)
            # The loop hears of the end of the connection only when it looks again.
            await asyncio.sleep(0)
        return leases

    monkeypatch.setattr(rest.store, "lease", taken)
    await rest.enqueue({"id": "j"})
    leaving.append(asyncio.create_task(rest.lease(worker="left")))
    await asyncio.wait(leaving)
    [lease] = await _next_lease(rest)
    assert (lease.job.attempt, lease.job.worker) == (1, "stays")


async def _next_lease(rest: RestClient) -> list[Lease]:
    """Lease from the store itself, waiting until the job is released."""
    request = LeaseRequest(queues=("default",), worker="stays", wait_ms=30_000)
    return await rest.store.lease(request)


async def test_replies_are_bounded_in_size(
    rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_reply, "_FIRST", 5)
    monkeypatch.setattr(bounded_reply, "_BYTES_MAX", 1_000)
    await rest.enqueue(*({"payload": "x" * 100} for _ in range(23)))
    assert [len(await rest.lease(limit=100)) for _ in range(3)] == [9, 9, 5]


async def test_large_jobs_are_leased_in_small_portions(
    rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = rest.store.lease
    asked: list[int] = []

    async def noted(request: LeaseRequest) -> list[Lease]:
        asked.append(request.limit)
        return await take(request)

    monkeypatch.setattr(rest.store, "lease", noted)
    await rest.enqueue(*({"payload": "x" * 1_000_000} for _ in range(25)))
    assert len(await rest.lease(limit=1_000)) == 10
    assert asked == [10]


async def test_leases_in_hand_are_told_when_the_next_cannot_be_had(
    rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_reply, "_FIRST", 5)
    take = rest.store.lease
    calls: list[int] = []

    async def broken(request: LeaseRequest) -> list[Lease]:
        calls.append(request.limit)
        if len(calls) == 2:
            raise EngineUnavailable("not now")
        return await take(request)

    monkeypatch.setattr(rest.store, "lease", broken)
    await rest.enqueue(*({} for _ in range(8)))
    assert len(await rest.lease(limit=8)) == 5
    assert calls == [5, 3]


async def test_a_thousand_leases_go_in_one_request_each_way(rest: RestClient) -> None:
    await rest.enqueue(*({"id": f"j{at}"} for at in range(1_000)))
    leases = await rest.lease(limit=1_000)
    assert len(leases) == 1_000
    outcomes = await rest.settle(*(verdict(lease, "complete", result=1) for lease in leases))
    assert {each["outcome"] for each in outcomes} == {"settled"}
