"""Jobs over REST: shown as the command line prints them."""

import asyncio
import base64
import json
from typing import Any

import msgspec
import pytest

from holdfast.cli import run
from holdfast.core.model import JobFilter, NewJob, Note, Queue, State
from holdfast.core.verdict import Complete, Settlement
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.engines.sqlite import rows as sqlite_rows
from holdfast.notation.durations import show_at
from holdfast.ops.jobs.text_search import EXAMINED_MAX
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
    told = await rest.get("/v1/jobs/died/output", attempt=1)
    assert told == await printed("logs", "died", "--attempt", "1")
    assert told["output"] == "\xff\n"
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


async def test_rows_leave_out_and_do_not_read_what_can_be_large(
    rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.enqueue(
        {
            "id": "a",
            "payload": {"secret": "x" * 5_000},
            "labels": {"n": "1"},
            "headers": {"h": "1"},
        },
        {"id": "b", "max_attempts": 3},
    )
    [lease] = await rest.lease(limit=1)
    await rest.settle(verdict(lease, "complete", result={"secret": 1}))
    full = {job["id"]: job for job in (await rest.get("/v1/jobs"))["jobs"]}

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a row needs no payload")

    monkeypatch.setattr(rest.store, "get", refuse)
    if isinstance(rest.store, SQLiteEngine):
        monkeypatch.setattr(rest.store, "find", refuse)
        monkeypatch.setattr(sqlite_rows, "large_payload", refuse)
    page = await rest.get("/v1/jobs", view="row", limit=10)
    assert (page["jobs"], page["after"]) == ([], None)
    assert [row["id"] for row in page["rows"]] == ["b", "a"]
    for row in page["rows"]:
        assert {"payload", "result", "output", "headers", "failures"}.isdisjoint(row)
        assert row == {name: full[row["id"]][name] for name in row}
    assert b"secret" not in msgspec.json.encode(page)


async def test_pages_of_rows_cover_every_job_once(
    rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await rest.enqueue(*[{"labels": {"a": "x" * 400}}] * 12)
    for limit, bytes_max in ((5, 10**9), (100, 1_000), (1, 10**9)):
        monkeypatch.setattr(module, "_BYTES_MAX", bytes_max)
        monkeypatch.setattr(module, "_ROWS", 3)
        seen: list[str] = []
        query: dict[str, Any] = {"limit": limit, "view": "row"}
        while True:
            page = await rest.get("/v1/jobs", **query)
            assert len(page["rows"]) <= min(limit, 3 if bytes_max < 10**9 else limit)
            seen += [job["id"] for job in page["rows"]]
            if page["after"] is None:
                break
            query["after"] = page["after"]
        assert sorted(seen) == sorted(ids)


async def test_a_timeline_tells_when_and_where_each_attempt_started(rest: RestClient) -> None:
    await rest.enqueue({"id": "a", "backoff": "constant(1s, jitter=0)"})
    starts = []
    for word, worker in (("failed", "w1"), ("complete", "w2")):
        [lease] = await rest.lease(worker=worker)
        starts.append(lease["job"]["leased_at"])
        rest.clock.advance(10)
        await rest.settle(verdict(lease, word))
        rest.clock.advance(1_000)
    events = (await rest.get("/v1/jobs/a/timeline"))["events"]
    ended = [event for event in events if "started_at" in event]
    assert [(each["event"], each["worker"], each["started_at"]) for each in ended] == [
        ("retried", "w1", starts[0]),
        ("completed", "w2", starts[1]),
    ]


async def test_a_payload_that_is_not_text_is_shown_in_base64(rest: RestClient) -> None:
    payloads = {
        "bytes": (b"\xff\x00\xfe", "application/octet-stream"),
        "broken": (b'"\xff"', "application/json"),
        "text": ("é".encode(), "text/plain"),
        "json": (b'{"a": 1}', "application/json"),
    }
    await rest.store.enqueue(
        [
            NewJob(id=id_, queue="default", task="t", payload=payload, content_type=kind)
            for id_, (payload, kind) in payloads.items()
        ]
    )
    shown = {job["id"]: job for job in (await rest.get("/v1/jobs"))["jobs"]}
    for id_, (payload, kind) in payloads.items():
        job = await rest.get(f"/v1/jobs/{id_}")
        assert job == shown[id_]
        assert (job["payload_bytes"], job["content_type"]) == (len(payload), kind)
    assert base64.b64decode(shown["bytes"]["payload_base64"]) == b"\xff\x00\xfe"
    assert shown["bytes"]["payload"] == "3 bytes"
    assert base64.b64decode(shown["broken"]["payload_base64"]) == b'"\xff"'
    assert "payload_base64" not in shown["text"]
    assert "payload_base64" not in shown["json"]
    assert (shown["text"]["payload"], shown["json"]["payload"]) == ("é", {"a": 1})


async def _containing(rest: RestClient, text: str, **query: Any) -> tuple[list[str], int]:
    """The ids of the jobs on all pages, and the number of jobs that were examined."""
    ids: list[str] = []
    examined = 0
    while True:
        page = await rest.get("/v1/jobs", contains=text, **query)
        assert page["examined"] <= EXAMINED_MAX
        assert (page["examined_to"] is None) == (page["examined"] == 0)
        ids += [job["id"] for job in page["rows" if query.get("view") == "row" else "jobs"]]
        examined += page["examined"]
        if page["after"] is None:
            return ids, examined
        query["after"] = page["after"]


@pytest.mark.parametrize("view", ["full", "row"])
async def test_jobs_are_found_by_a_text_in_their_payload_or_error(
    rest: RestClient, view: str
) -> None:
    await rest.enqueue(
        {"id": "plain", "payload": {"to": "Ada Lovelace"}},
        {"id": "quoted", "payload": 'she said "hi"\n'},
        {"id": "accent", "payload": {"name": "Zoë"}},
        {"id": "retried", "payload": 1},
        {"id": "died", "payload": 2, "max_attempts": 1},
        {"id": "other", "payload": 3},
    )
    escaped = NewJob(id="escaped", queue="default", task="t", payload=b'"Zo\\u00eb"')
    await rest.store.enqueue([escaped])
    for lease in await rest.lease(limit=7):
        if lease["job"]["id"] in ("retried", "died"):
            error = f"cannot reach {lease['job']['id']}.example"
            await rest.settle(verdict(lease, "failed", error=error))
        elif lease["job"]["id"] == "other":
            await rest.settle(verdict(lease, "complete", result="Ada Lovelace"))
    for text, ids in {
        "Ada": ["plain"],
        "ada": [],
        'said "hi"': ["quoted"],
        'hi"\n': ["quoted"],
        "Zoë": ["escaped", "accent"],
        "cannot reach": ["died", "retried"],
        "died.example": ["died"],
    }.items():
        assert await _containing(rest, text, view=view) == (ids, 7), text
    assert await _containing(rest, "cannot", view=view, state="dead") == (["died"], 1)
    assert await rest.refused("GET", "/v1/jobs", contains="") == (400, "invalid_request")


async def test_a_search_for_a_text_is_bounded_and_resumable(
    rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await rest.enqueue(*({"payload": "x" * 400 + str(at % 5)} for at in range(40)))
    wanted = [id_ for at, id_ in enumerate(ids) if at % 5 == 3][::-1]
    for name, most in {"EXAMINED_MAX": 7, "_EXAMINED_BYTES_MAX": 1_000}.items():
        with monkeypatch.context() as patched:
            patched.setattr(module, name, most)
            page = await rest.get("/v1/jobs", contains="x3", view="row")
            assert 0 < page["examined"] < 40
            assert page["after"] is not None
            assert await _containing(rest, "x3", view="row") == (wanted, 40)
    first = await rest.get("/v1/jobs", contains="x3", view="row", limit=1)
    assert [job["id"] for job in first["rows"]] == wanted[:1]
    assert await _containing(rest, "x3", limit=1) == (wanted, 40)


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


async def test_the_children_of_a_job_are_listed(rest: RestClient) -> None:
    await rest.enqueue({"id": "p"}, {"id": "other"})
    await rest.enqueue({"id": "a", "after": ["p"]}, {"id": "b", "after": ["other"]})
    await rest.enqueue({"id": "c", "after": ["p", "other"]})
    listed = await rest.get("/v1/jobs", parent="p", view="row")
    assert [row["id"] for row in listed["rows"]] == ["c", "a"]
    [tally] = (await rest.get("/v1/tally", parent="p", by="queue"))["tallies"]
    assert tally == {"value": "default", "count": 2}
    body = {"filter": {"parent": "p"}, "act": "cancel"}
    assert (await rest.post("/v1/jobs/amend", body))["changed"] == 2
    assert await rest.refused("GET", "/v1/jobs", parent="no such id!") == (400, "invalid_request")


async def test_jobs_are_listed_by_their_ids(rest: RestClient) -> None:
    await rest.enqueue(*({"id": id_} for id_ in "abcd"))
    await rest.post("/v1/jobs/d/cancel", {})
    for view, field in (("row", "rows"), ("full", "jobs")):
        listed = await rest.get("/v1/jobs", id=["a", "d", "gone", "a"], view=view)
        assert [job["id"] for job in listed[field]] == ["d", "a"]
        assert listed["after"] is None
    waiting = await rest.get("/v1/jobs", id=["a", "d"], state=["waiting"], view="row")
    assert [row["id"] for row in waiting["rows"]] == ["a"]
    assert await rest.refused("GET", "/v1/jobs", id=["no such id!"]) == (400, "invalid_request")
    many = [f"job-{number}" for number in range(201)]
    assert await rest.refused("GET", "/v1/jobs", id=many) == (400, "invalid_request")
