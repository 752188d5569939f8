"""Changing jobs over REST: one by its id, or all that match a filter."""

from typing import Any

import pytest

from holdfast.core import bounds
from holdfast.core.model import EventKind, LeaseRequest, Queue, Reason, State
from holdfast.core.workers import WorkerOrder
from holdfast.errors import EngineUnavailable
from holdfast.ops.workers import ORDERS
from holdfast.server.rest import jobs
from tests.server.rest_client import RestClient, verdict

AMEND = "/v1/jobs/amend"


async def finished(rest: RestClient) -> None:
    """One job in each state, named after it."""
    await rest.enqueue({"id": "done"}, {"id": "dead"}, {"id": "leased"})
    for lease in await rest.lease(limit=3):
        if lease["job"]["id"] == "done":
            await rest.settle(verdict(lease, "complete", result=1))
        if lease["job"]["id"] == "dead":
            await rest.settle(verdict(lease, "bury", error="broken"))
    await rest.enqueue({"id": "cancelled"}, {"id": "waiting"})
    await rest.post("/v1/jobs/cancelled/cancel")


async def states(rest: RestClient) -> dict[str, str]:
    return {id_: (await rest.job(id_)).state for id_ in ("waiting", "leased", "done", "dead")}


async def test_a_dry_run_counts_and_changes_nothing(rest: RestClient) -> None:
    await finished(rest)
    before = await states(rest)
    body = {"filter": {"task": "t"}, "act": "delete", "dry_run": True}
    assert await rest.post(AMEND, body) == {
        "matched": 4,
        "changed": 0,
        "dry_run": True,
        "after": None,
    }
    assert await states(rest) == before


async def test_an_act_changes_only_matching_jobs(rest: RestClient) -> None:
    await rest.store.declare(Queue(name="mail"))
    await rest.enqueue({"id": "a"}, {"id": "b", "tenant": "acme"})
    await rest.enqueue({"id": "c", "tenant": "acme"}, queue="mail")
    body = {"filter": {"tenant": "acme", "queue": "mail"}, "act": "cancel", "text": "why"}
    answer = await rest.post(AMEND, body)
    assert (answer["matched"], answer["changed"]) == (1, 1)
    job = await rest.job("c")
    assert job.state is State.CANCELLED
    assert (job.events[-1].by, job.events[-1].text) == ("local", "why")
    assert {(await rest.job(id_)).state for id_ in "ab"} == {State.WAITING}


@pytest.mark.parametrize(
    ("act", "ids"),
    [
        ({"act": "cancel"}, {"waiting", "leased"}),
        ({"act": "retry", "delay": "1m"}, {"dead"}),
        ({"act": "expedite"}, {"waiting"}),
        ({"act": "delete"}, {"waiting", "done", "dead", "cancelled"}),
        ({"act": "delete", "force": True}, {"waiting", "leased", "done", "dead", "cancelled"}),
        ({"act": "edit", "priority": 3, "text": "so"}, {"waiting", "dead"}),
        ({"act": "move", "queue": "mail"}, {"waiting", "dead"}),
        ({"act": "retime", "delay": 5}, {"waiting"}),
        ({"act": "bury", "text": "enough"}, {"waiting"}),
    ],
)
async def test_each_act_applies_to_its_states(
    rest: RestClient, act: dict[str, Any], ids: set[str]
) -> None:
    await finished(rest)
    await rest.store.declare(Queue(name="mail"))
    names = ["waiting", "leased", "done", "dead", "cancelled"]
    before = {id_: await rest.store.get(id_) for id_ in names}
    answer = await rest.post(AMEND, {"filter": {"task": "t"}, **act})
    assert (answer["matched"], answer["changed"]) == (len(ids), len(ids))
    assert {id_ for id_ in names if await rest.store.get(id_) != before[id_]} == ids


async def test_an_act_only_narrows_the_states_of_a_filter(rest: RestClient) -> None:
    await finished(rest)
    filter_ = {"states": ["done", "leased"], "task": "t"}
    answer = await rest.post(AMEND, {"filter": filter_, "act": "retry"})
    assert (answer["matched"], answer["changed"]) == (1, 1)
    assert (await rest.job("done")).state is State.WAITING
    answer = await rest.post(AMEND, {"filter": {"states": ["leased"], "task": "t"}, "act": "bury"})
    assert answer["matched"] == 0
    answer = await rest.post(AMEND, {"filter": {"ids": ["cancelled", "nobody"]}, "act": "retry"})
    assert (answer["matched"], answer["changed"]) == (1, 1)


async def test_an_edit_adds_labels_to_those_of_each_job(rest: RestClient) -> None:
    await rest.enqueue({"id": "a", "labels": {"x": "1"}}, {"id": "b", "headers": {"h": "1"}})
    act = {"act": "edit", "labels": {"y": "2"}, "headers": {"i": "2"}, "payload": [5]}
    answer = await rest.post(AMEND, {"filter": {"task": "t"}, **act})
    assert answer["changed"] == 2
    a, b = await rest.job("a"), await rest.job("b")
    assert (a.labels, a.headers, a.payload) == ({"x": "1", "y": "2"}, {"i": "2"}, b"[5]")
    assert (b.labels, b.headers) == ({"y": "2"}, {"h": "1", "i": "2"})


async def test_paging_amends_every_job_once(
    rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if changed jobs still match."""
    monkeypatch.setattr(jobs, "_AMEND_BATCH", 3)
    await rest.enqueue(*({"id": f"j{at}"} for at in range(20)))
    body: dict[str, Any] = {"filter": {"task": "t"}, "act": "edit", "priority": 1, "limit": 8}
    numbers = []
    while True:
        answer = await rest.post(AMEND, body)
        numbers.append(answer["changed"])
        if answer["after"] is None:
            break
        body["after"] = answer["after"]
    assert sum(numbers) == 20
    assert max(numbers) <= 8
    for at in range(20):
        events = (await rest.job(f"j{at}")).events
        assert [event.kind for event in events] == [EventKind.EDITED]


async def test_all_jobs_must_be_requested_explicitly(rest: RestClient) -> None:
    await rest.enqueue({}, {})
    for filter_ in ({}, {"states": ["waiting"]}):
        said = {"filter": filter_, "act": "cancel"}
        assert await rest.refused("POST", AMEND, said) == (422, "usage")
    both = {"filter": {"task": "t"}, "act": "cancel", "all": True}
    assert await rest.refused("POST", AMEND, both) == (422, "usage")
    answer = await rest.post(AMEND, {"filter": {}, "act": "cancel", "all": True})
    assert answer["changed"] == 2


async def test_an_act_takes_only_its_options(rest: RestClient) -> None:
    await rest.enqueue({"id": "j"})
    for act, refusal in (
        ({"act": "cancel", "delay": 1}, (422, "usage")),
        ({"act": "expedite", "text": "x"}, (422, "usage")),
        ({"act": "move"}, (422, "usage")),
        ({"act": "retime"}, (422, "usage")),
        ({"act": "edit"}, (422, "usage")),
        ({"act": "move", "queue": "nowhere"}, (404, "unknown_queue")),
        ({"act": "edit", "payload": "x" * bounds.PAYLOAD_MAX}, (413, "payload_too_large")),
        ({"act": "retime", "delay": "999999w"}, (422, "invalid_job")),
        ({"act": "explode"}, (400, "invalid_request")),
        ({"act": "cancel", "colour": 1}, (400, "invalid_request")),
    ):
        body = {"filter": {"ids": ["j"]}, **act}
        assert await rest.refused("POST", AMEND, body) == refusal, act
    assert (await rest.job("j")).events == ()


async def test_a_cancel_by_force_tells_the_worker(rest: RestClient) -> None:
    await rest.enqueue({"id": "j"})
    await rest.store.lease(LeaseRequest(ids=("j",), worker="w"))
    for _ in range(2):
        shown = await rest.post("/v1/jobs/j/cancel", {"force": True})
        assert (shown["state"], shown["cancel_requested"]) == ("leased", True)
    orders = await ORDERS.values(rest.store)
    assert orders["w"].forced_since(WorkerOrder()) == {"j"}


async def test_acts_on_one_job_answer_with_the_job(rest: RestClient) -> None:
    await finished(rest)
    shown = await rest.post("/v1/jobs/dead/retry", {"delay": "1m", "text": "mended"})
    assert (shown["state"], shown["attempts"]) == ("waiting", 0)
    assert (await rest.job("dead")).due_at == rest.clock.wall_ms() + 60_000
    assert (await rest.post("/v1/jobs/dead/expedite"))["priority"] == bounds.PRIORITY_MAX
    shown = await rest.post("/v1/jobs/leased/cancel", {"text": "stop"})
    assert (shown["state"], shown["cancel_requested"]) == ("leased", True)
    assert (await rest.post("/v1/jobs/waiting/cancel"))["state"] == "cancelled"
    await rest.ask("DELETE", "/v1/jobs/done", status=204)
    assert await rest.store.get("done") is None


async def test_a_refused_act_on_one_job_has_a_reason(rest: RestClient) -> None:
    await finished(rest)
    for method, path, refusal in (
        ("POST", "/v1/jobs/nobody/cancel", (404, "not_found")),
        ("POST", "/v1/jobs/done/cancel", (409, "wrong_state")),
        ("POST", "/v1/jobs/waiting/retry", (409, "wrong_state")),
        ("POST", "/v1/jobs/leased/expedite", (409, "wrong_state")),
        ("DELETE", "/v1/jobs/leased", (409, "wrong_state")),
        ("DELETE", "/v1/jobs/nobody", (404, "not_found")),
    ):
        assert await rest.refused(method, path) == refusal, path
    body = {"priority": 1}
    assert await rest.refused("PATCH", "/v1/jobs/leased", body) == (409, "wrong_state")
    assert await rest.refused("PATCH", "/v1/jobs/nobody", body) == (404, "not_found")
    assert await rest.refused("PATCH", "/v1/jobs/waiting", {}) == (422, "usage")
    await rest.ask("DELETE", "/v1/jobs/leased", status=204, force="true")


async def test_an_edit_changes_what_is_given_and_keeps_the_rest(rest: RestClient) -> None:
    await rest.store.declare(Queue(name="mail"))
    await rest.enqueue({"id": "j", "payload": 1, "labels": {"a": "1"}, "priority": 4})
    changes = {
        "payload": {"to": "ä"}, "expires": "1h", "delay": 60, "queue": "mail",
        "labels": {"b": "2"}, "headers": {"h": "1"},
    }  # fmt: skip
    shown = await rest.ask("PATCH", "/v1/jobs/j", changes)
    assert (shown["payload"], shown["queue"], shown["priority"]) == ({"to": "ä"}, "mail", 4)
    job = await rest.job("j")
    now = rest.clock.wall_ms()
    assert (job.due_at, job.expires_at) == (now + 60_000, now + 3_600_000)
    assert (job.labels, job.headers) == ({"a": "1", "b": "2"}, {"h": "1"})
    assert {event.by for event in job.events} == {"local"}
    await rest.post(AMEND, {"filter": {"ids": ["j"]}, "act": "bury", "text": "no"})
    job = await rest.job("j")
    assert (job.state, job.reason) == (State.DEAD, Reason.EXPLICIT)
    assert (await rest.ask("PATCH", "/v1/jobs/j", {"priority": -1}))["priority"] == -1


async def test_a_job_for_one_worker_goes_to_another(rest: RestClient) -> None:
    for name in ("w1", "w2"):
        await rest.store.declare(Queue(name=f"worker.{name}"))
    jobs = [{"id": "j", "task": "t", "to": "w1"}, {"id": "k", "task": "t"}]
    await rest.post("/v1/jobs", {"jobs": jobs}, status=201)
    answer = await rest.post("/v1/jobs/j/reroute", {"to": "w2", "expires": "10m"})
    assert answer == {"id": "j", "worker": "w2"}
    job = await rest.job("j")
    assert (job.queue, job.expires_at) == ("worker.w2", rest.clock.wall_ms() + 600_000)
    assert await rest.refused("POST", "/v1/jobs/j/reroute") == (422, "usage")
    assert await rest.refused("POST", "/v1/jobs/k/reroute", {"to": "w1"}) == (422, "usage")
    assert await rest.refused("POST", "/v1/jobs/nobody/reroute") == (404, "not_found")
    body = {"to": "w1", "labels": {"a": "b"}}
    assert await rest.refused("POST", "/v1/jobs/j/reroute", body) == (422, "usage")
    gone = await rest.refused("POST", "/v1/jobs/j/reroute", {"to": "w9"})
    assert gone == (404, "unknown_queue")


@pytest.mark.parametrize("edits", [False, True])
@pytest.mark.parametrize(
    ("good", "refusal"), [(0, (503, "unavailable")), (1, (504, "outcome_unknown"))]
)
async def test_a_partial_change_is_outcome_unknown(
    rest: RestClient, monkeypatch: pytest.MonkeyPatch, good: int, refusal: Any, edits: bool
) -> None:
    monkeypatch.setattr(jobs, "_AMEND_BATCH", 2 if edits else 1)
    store_amend = rest.store.amend
    calls: list[int] = []

    async def broken(wanted: Any, act: Any, *, limit: int) -> int:
        calls.append(limit)
        if len(calls) > good:
            raise EngineUnavailable("not now")
        return await store_amend(wanted, act, limit=limit)

    await rest.enqueue({"id": "a"}, {"id": "b"})
    monkeypatch.setattr(rest.store, "amend", broken)
    act = {"act": "edit", "labels": {"x": "1"}} if edits else {"act": "cancel"}
    assert await rest.refused("POST", AMEND, {"filter": {"task": "t"}, **act}) == refusal
