"""Jobs over REST: shown as the command line prints them."""

import asyncio
import json
from typing import Any

import pytest

from holdfast.cli import run
from holdfast.core.model import JobFilter, NewJob, Note, Queue, State
from holdfast.core.verdict import Complete, Settlement
from holdfast.notation.durations import show_at
from holdfast.server.rest import jobs as module
from tests.server.rest_client import RestClient, verdict


async def test_a_job_equals_the_command_lines_output(
    rest: RestClient, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", str(rest.client.base_url).rstrip("/"))

    async def printed(*words: str) -> Any:
        assert await asyncio.to_thread(run, ["job", *words, "--json"]) == 0
        return json.loads(capfd.readouterr().out)

    await rest.store.declare(Queue(name="mail", max_attempts=2))
    said = {"id": "died", "payload": {"ä": [1, None]}, "labels": {"a": "b"}, "max_attempts": 1}
    await rest.enqueue(said, {"id": "done", "priority": 5}, {"id": "ran"}, queue="mail")
    await rest.enqueue({"id": "waits", "after": ["ran"], "delay": "1h"}, {"id": "cancelled"})
    by_id = {each["job"]["id"]: each for each in await rest.lease("mail", limit=3)}
    await rest.settle(
        verdict(by_id["died"], "failed", error="\x1b[31m", output="\xff\n"),
        verdict(by_id["done"], "complete", result=[{"a": 1.5}]),
    )
    await rest.post("/v1/jobs/cancelled/cancel", {"text": "no"})
    for id_ in ("died", "done", "ran", "waits", "cancelled"):
        assert await rest.get(f"/v1/jobs/{id_}") == await printed("show", id_)
        told = await rest.get(f"/v1/jobs/{id_}/timeline")
        assert told["events"] == await printed("timeline", id_)
        assert await rest.get(f"/v1/jobs/{id_}/output") == await printed("logs", id_)
    explained = await rest.get("/v1/jobs/died/explain")
    assert explained == await printed("explain", "died")
    assert explained["reasons"][0]["code"] == "dead"
    listed = await rest.get("/v1/jobs", state="dead")
    assert listed == {"jobs": await printed("list", "--state", "dead"), "after": None}


@pytest.mark.parametrize(
    ("state", "ids"),
    [
        ("pending", ["later", "new"]),
        ("scheduled", ["later"]),
        ("failed", ["retried"]),
        ("retrying", ["retried"]),
        ("completed", ["done"]),
        ("processing", []),
        (["failed", "done"], ["done", "retried"]),
    ],
)
async def test_states_by_the_words_of_other_queues(
    rest: RestClient, state: str | list[str], ids: list[str]
) -> None:
    await rest.enqueue({"id": "retried"}, {"id": "done"})
    [first] = await rest.lease()
    await rest.settle(verdict(first, "retry", delay="1h"))
    [second] = await rest.lease()
    await rest.settle(verdict(second, "complete"))
    await rest.enqueue({"id": "new"}, {"id": "later", "delay": "1h"})
    listed = await rest.get("/v1/jobs", state=state)
    assert [job["id"] for job in listed["jobs"]] == ids
    tallied = (await rest.get("/v1/tally", by="queue", state=state))["tallies"]
    assert sum(each["count"] for each in tallied) == len(ids)
    states = [state] if isinstance(state, str) else state
    body = {"act": "edit", "priority": 5, "filter": {"states": states}, "all": True}
    waiting = [id_ for id_ in ids if id_ != "done"]
    assert (await rest.post("/v1/jobs/amend", body))["changed"] == len(waiting)
    [queue] = (await rest.get("/v1/status"))["queues"]
    assert (queue["ready"], queue["delayed"], queue["failed"]) == (1, 2, 1)


async def test_unknown_jobs_are_not_found(rest: RestClient) -> None:
    for path in ("", "/timeline", "/explain", "/output"):
        assert await rest.refused("GET", f"/v1/jobs/nobody{path}") == (404, "not_found")
    assert await rest.refused("GET", "/v1/jobs/no%20id") == (400, "invalid_request")


async def test_a_wait_ends_with_the_job(rest: RestClient) -> None:
    await rest.enqueue({"id": "j"})
    assert (await rest.get("/v1/jobs/j"))["state"] == "waiting"
    waiting = asyncio.create_task(rest.get("/v1/jobs/j", wait=30))
    [lease] = await rest.lease()
    await rest.settle(verdict(lease, "complete", result=7))
    job = await waiting
    assert (job["state"], job["result"]) == ("done", 7)


async def test_results_and_output_that_are_not_json(rest: RestClient) -> None:
    binary = NewJob(id="a", task="t", payload=b"\xff", content_type="application/octet-stream")
    await rest.store.enqueue([binary, NewJob(id="b", task="t", payload=b"{nonsense")])
    leases = await rest.lease(limit=2)
    held = (await rest.store.find(JobFilter(ids=("a",)), limit=1)).jobs[0]
    assert held.token == leases[0]["token"]
    [lease] = [each for each in await _leases(rest) if each.id == "a"]
    note = Note(output=b"\xff\xfe")
    settlement = Settlement(lease=lease, verdict=Complete(b"not json"), note=note)
    await rest.store.settle([settlement])
    job = await rest.get("/v1/jobs/a")
    assert (job["payload"], job["result"], job["output"]) == ("1 byte", "not json", "\ufffd\ufffd")
    assert (await rest.get("/v1/jobs/b"))["payload"] == "{nonsense"


async def _leases(rest: RestClient) -> tuple[Any, ...]:
    rest.clock.advance(3_600_000)
    return (await rest.store.overdue(10)).leases


async def test_filters_select_jobs(rest: RestClient) -> None:
    await rest.store.declare(Queue(name="mail"))
    await rest.enqueue(
        {"id": "a", "task": "one", "tenant": "acme", "labels": {"x": "1", "y": "2"}},
        {"id": "b", "task": "two", "key": "k", "group": "g"},
    )
    rest.clock.advance(60_000)
    await rest.enqueue({"id": "c", "task": "one", "labels": {"x": "1"}}, queue="mail")
    await rest.lease("mail", worker="w")
    for query, ids in (
        ({}, "cba"),
        ({"queue": "mail"}, "c"),
        ({"task": "one"}, "ca"),
        ({"tenant": "acme"}, "a"),
        ({"group": "g"}, "b"),
        ({"key": "k"}, "b"),
        ({"worker": "w"}, "c"),
        ({"state": "leased"}, "c"),
        ({"state": ["leased", "waiting"]}, "cba"),
        ({"label": "x=1"}, "ca"),
        ({"label": ["x=1", "y=2"]}, "a"),
        ({"search": "acm"}, "a"),
        ({"since": show_at(rest.clock.wall_ms())}, "c"),
        ({"before": show_at(rest.clock.wall_ms())}, "ba"),
        ({"reason": "attempts"}, ""),
    ):
        found = await rest.get("/v1/jobs", **query)
        assert "".join(job["id"] for job in found["jobs"]) == ids, query
        tallies = (await rest.get("/v1/tally", by="queue", **query))["tallies"]
        assert sum(each["count"] for each in tallies) == len(ids), query


async def test_a_misspelt_filter_is_refused(rest: RestClient) -> None:
    for query in (
        {"quee": "mail"},
        {"state": "running"},
        {"limit": 0},
        {"limit": 1001},
        {"after": "x"},
        {"label": "x"},
        {"reason": "boredom"},
    ):
        assert await rest.refused("GET", "/v1/jobs", **query) == (400, "invalid_request"), query
    for query in ({"since": "yesterday"}, {"before": "2026-01-31T08:00"}):
        assert await rest.refused("GET", "/v1/jobs", **query) == (422, "usage")
    assert await rest.refused("GET", "/v1/tally", by="colour") == (400, "invalid_request")


async def test_pages_cover_every_job_once(
    rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGE", 3)
    ids = [f"j{at}" for at in range(20)]
    await rest.enqueue(*({"id": id_, "payload": "x" * 400} for id_ in ids))
    for limit, bytes_max in ((7, 10**9), (100, 1_000), (1, 10**9)):
        monkeypatch.setattr(module, "_BYTES_MAX", bytes_max)
        seen: list[str] = []
        query: dict[str, Any] = {"limit": limit}
        while True:
            page = await rest.get("/v1/jobs", **query)
            assert len(page["jobs"]) <= min(limit, 3 if bytes_max < 10**9 else limit)
            seen += [job["id"] for job in page["jobs"]]
            if page["after"] is None:
                break
            query["after"] = page["after"]
        assert seen == ids[::-1]


async def test_tallies_are_counted_by_value(rest: RestClient) -> None:
    await rest.enqueue({"task": "a"}, {"task": "b"}, {"task": "a"})
    await rest.lease()
    assert await rest.get("/v1/tally") == {
        "by": "state",
        "tallies": [{"value": "waiting", "count": 2}, {"value": "leased", "count": 1}],
        "more": False,
    }
    assert await rest.get("/v1/tally", by="task", limit=1) == {
        "by": "task",
        "tallies": [{"value": "a", "count": 2}],
        "more": True,
    }
    tallies = (await rest.get("/v1/tally", by="task", state=["leased"]))["tallies"]
    assert tallies == [{"value": "a", "count": 1}]
    assert (await rest.store.tally(JobFilter(), "state", limit=5))[0].value == State.WAITING
