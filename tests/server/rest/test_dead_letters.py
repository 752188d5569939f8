"""Dead letters over REST: list, group, retry and purge."""

from typing import Any

import pytest

from holdfast.core.model import Failure, FailureKind, LeaseRequest, Reason, State
from holdfast.core.verdict import Bury, Settlement
from tests.server.rest_client import RestClient

DEAD = "/v1/dead"


async def die(
    rest: RestClient,
    *ids: str,
    text: str = "boom",
    reason: Reason = Reason.ATTEMPTS,
    kind: FailureKind = FailureKind.ERROR,
    **job: Any,
) -> None:
    """As their workers say."""
    await rest.enqueue(*({"id": id_, **job} for id_ in ids))
    request = LeaseRequest(ids=ids, limit=len(ids), worker="w")
    failure = Failure(type="ValueError", message=text, kind=kind, trace="Fatal: it fell")
    leases = await rest.store.lease(request)
    assert len(leases) == len(ids)
    await rest.store.settle(
        [Settlement(lease=lease, verdict=Bury(reason, failure)) for lease in leases]
    )


async def state(rest: RestClient, id: str) -> State | None:
    job = await rest.store.get(id)
    return None if job is None else job.state


async def test_the_list_has_only_dead_letters(rest: RestClient) -> None:
    await rest.enqueue({"id": "alive"})
    await die(rest, "a", "b", task="mail:send")
    await die(rest, "c")
    listed = await rest.get(DEAD)
    assert ([job["id"] for job in listed["jobs"]], listed["after"]) == (["c", "b", "a"], None)
    assert (listed["jobs"][0]["error"], listed["jobs"][0]["reason"]) == ("boom", "attempts")
    assert listed["jobs"][0] == await rest.get("/v1/jobs/c")
    some = await rest.get(DEAD, task="mail:send", limit=1)
    assert [job["id"] for job in some["jobs"]] == ["b"]
    more = await rest.get(DEAD, task="mail:send", limit=1, after=some["after"])
    assert [job["id"] for job in more["jobs"]] == ["a"]


async def test_groups_are_by_cause(rest: RestClient) -> None:
    await die(rest, "a", "b", text="no route to host")
    await die(rest, "c", text="disk full")
    found = await rest.get(f"{DEAD}/groups")
    assert (found["total"], found["hidden"], found["estimated"]) == (3, 0, False)
    assert [(each["count"], each["text"]) for each in found["groups"]] == [
        (2, "no route to host"),
        (1, "disk full"),
    ]
    assert set(found["groups"][0]["ids"]) == {"a", "b"}
    assert sum(found["groups"][0]["trend"]) == 2
    fewer = await rest.get(f"{DEAD}/groups", limit=1)
    assert (len(fewer["groups"]), fewer["hidden"]) == (1, 1)
    fingerprint = found["groups"][1]["fingerprint"]
    only = await rest.get(DEAD, fingerprint=fingerprint)
    assert [job["id"] for job in only["jobs"]] == ["c"]


async def test_quarantine_lists_jobs_that_crashed_workers(rest: RestClient) -> None:
    await die(rest, "plain")
    await die(rest, "killer", reason=Reason.CRASHED, kind=FailureKind.CRASH)
    found = await rest.get(f"{DEAD}/quarantine")
    assert [(each["id"], each["words"], each["workers"]) for each in found["jobs"]] == [
        ("killer", "Fatal: it fell", ["w"])
    ]
    refused = await rest.refused("GET", f"{DEAD}/quarantine", reason="expired")
    assert refused == (422, "usage")


async def test_matching_dead_letters_are_retried(rest: RestClient) -> None:
    await die(rest, "a", "b", task="mail:send", payload={"to": "x", "bad": 1})
    await die(rest, "c")
    body = {"filter": {"task": "mail:send"}, "edit": {"bad": None}, "delay": "1m"}
    looked = await rest.post(f"{DEAD}/retry", {**body, "dry_run": True})
    assert looked == {"found": 2, "more": False, "capped": 0, "retried": 0}
    assert await state(rest, "a") is State.DEAD
    done = await rest.post(f"{DEAD}/retry", body)
    assert done == {"found": 2, "more": False, "capped": 0, "retried": 2}
    job = await rest.job("a")
    assert (job.state, job.payload, job.attempt) == (State.WAITING, b'{"to":"x"}', 0)
    assert job.due_at == rest.clock.wall_ms() + 60_000
    assert any(event.by == "local" for event in job.events)
    assert await state(rest, "c") is State.DEAD


async def test_jobs_redriven_too_often_stay_dead_unless_named(rest: RestClient) -> None:
    for _ in range(2):
        await die(rest, "often") if await state(rest, "often") is None else await again(rest)
        await rest.post(f"{DEAD}/retry", {"filter": {"ids": ["often"]}})
    await again(rest)
    await die(rest, "once")
    done = await rest.post(f"{DEAD}/retry", {"all": True, "max_redrives": 2})
    assert done == {"found": 1, "more": False, "capped": 1, "retried": 1}
    assert await state(rest, "often") is State.DEAD
    named = await rest.post(f"{DEAD}/retry", {"filter": {"ids": ["often"]}})
    assert named["retried"] == 1


async def again(rest: RestClient) -> None:
    [lease] = await rest.store.lease(LeaseRequest(ids=("often",), worker="w"))
    await rest.store.settle([Settlement(lease=lease, verdict=Bury())])


async def test_a_bounded_retry_reports_that_there_are_more(rest: RestClient) -> None:
    await die(rest, *(f"j{at}" for at in range(5)))
    first = await rest.post(f"{DEAD}/retry", {"all": True, "limit": 3})
    assert (first["more"], first["retried"]) == (True, 3)
    second = await rest.post(f"{DEAD}/retry", {"all": True, "limit": 3})
    assert (second["more"], second["retried"]) == (False, 2)


async def test_a_bounded_retry_skips_capped_jobs(rest: RestClient) -> None:
    await die(rest, "old")
    await die(rest, "often")
    await rest.post(f"{DEAD}/retry", {"filter": {"ids": ["often"]}})
    await again(rest)
    done = await rest.post(f"{DEAD}/retry", {"all": True, "max_redrives": 1, "limit": 1})
    assert done["retried"] == 1
    assert await state(rest, "old") is State.WAITING


async def test_purge_deletes_dead_letters(rest: RestClient) -> None:
    await rest.enqueue({"id": "alive", "task": "x"})
    await die(rest, "a", "b", task="x")
    await die(rest, "c")
    body = {"filter": {"task": "x"}}
    looked = await rest.post(f"{DEAD}/purge", {**body, "dry_run": True})
    assert looked == {"found": 2, "more": False, "purged": 0}
    assert (await rest.post(f"{DEAD}/purge", body))["purged"] == 2
    assert await state(rest, "a") is None
    assert await state(rest, "alive") is State.WAITING
    assert (await rest.post(f"{DEAD}/purge", {"all": True}))["purged"] == 1


@pytest.mark.parametrize("act", ["retry", "purge"])
@pytest.mark.parametrize(
    "body",
    [{}, {"filter": {}}, {"all": True, "filter": {"task": "t"}}, {"filter": {"states": ["done"]}}],
)
async def test_all_must_be_requested_explicitly(
    rest: RestClient, act: str, body: dict[str, Any]
) -> None:
    await die(rest, "a")
    assert await rest.refused("POST", f"{DEAD}/{act}", body) == (422, "usage")
    assert await state(rest, "a") is State.DEAD


async def test_old_jobs_are_cleaned_up(rest: RestClient) -> None:
    await die(rest, "old")
    rest.clock.advance(3 * 86_400_000)
    await die(rest, "new")
    await rest.enqueue({"id": "alive"})
    looked = await rest.post("/v1/cleanup", {"days": 2, "dead": True, "dry_run": True})
    assert looked == {"found": 1, "more": False, "deleted": 0}
    assert (await rest.post("/v1/cleanup", {"days": 2, "states": ["done"]}))["deleted"] == 0
    assert (await rest.post("/v1/cleanup", {"days": 2}))["deleted"] == 0
    assert (await rest.post("/v1/cleanup", {"dead": True}))["deleted"] == 0, "not 7 days old"
    assert (await rest.post("/v1/cleanup", {"days": 2, "dead": True}))["deleted"] == 1
    assert await state(rest, "old") is None
    assert await state(rest, "new") is State.DEAD
    assert await rest.refused("POST", "/v1/cleanup", {"days": 0, "states": ["leased"]}) == (
        422,
        "usage",
    )
