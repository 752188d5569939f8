"""Queues over REST: settings, limits, and acts on a whole queue."""

import asyncio
from typing import Any

import pytest

from holdfast.core.model import JobFilter, Queue, State
from holdfast.ops.queues import read_pause
from tests.server.rest_client import RestClient, verdict

QUEUES = "/v1/queues"
MAIL = f"{QUEUES}/mail"

SETTINGS: dict[str, tuple[Any, str, Any]] = {
    "lease": ("1m", "lease_ms", 60_000),
    "timeout": (90, "timeout_ms", 90_000),
    "max_attempts": (7, "max_attempts", 7),
    "max_crashes": (2, "max_crashes", 2),
    "backoff": (
        "constant(5s, jitter=0)",
        "backoff",
        {"kind": "constant", "first_ms": 5000, "factor": 2.0, "cap_ms": 300_000, "jitter": 0.0},
    ),
    "order": ("keep", "order", "keep"),
    "retention": ("1h", "retention_ms", 3_600_000),
    "dead_retention": ("2d", "dead_retention_ms", 172_800_000),
    "dead_queue": ("default", "dead_queue", "default"),
    "max_depth": (10, "max_depth", 10),
    "payload_max": (1000, "payload_max", 1000),
    "accepting": (False, "accepting", False),
    "fairness": ("shares", "fairness", "shares"),
    "weights": ({"acme": 5}, "weights", {"acme": 5}),
    "aging": (0.5, "aging_ms", 500),
    "group_batch": (3, "group_batch", 3),
}


async def make(rest: RestClient, **settings: Any) -> Any:
    return await rest.post(QUEUES, {"name": "mail", **settings}, status=201)


async def stored(rest: RestClient, name: str = "mail") -> Queue:
    views = await rest.store.queues(counts=False)
    return next(view.queue for view in views if view.queue.name == name)


async def ids(rest: RestClient, **wanted: Any) -> set[str]:
    page = await rest.store.find(JobFilter(**wanted), limit=1000)
    return {job.id for job in page.jobs}


async def test_a_queue_is_created_once(rest: RestClient) -> None:
    made = await make(rest, lease="1m")
    assert (made["name"], made["lease_ms"], made["max_attempts"]) == ("mail", 60_000, 4)
    assert await rest.refused("POST", QUEUES, {"name": "mail"}) == (409, "exists")
    assert (await stored(rest)).lease_ms == 60_000


@pytest.mark.parametrize("name", SETTINGS)
async def test_every_setting_can_be_changed(rest: RestClient, name: str) -> None:
    given, field, kept = SETTINGS[name]
    before = await make(rest)
    changed = await rest.ask("PATCH", MAIL, {name: given})
    assert changed[field] == kept
    assert {**changed, field: before[field]} == before
    shown = await rest.get(MAIL)
    assert shown[field] == kept


@pytest.mark.parametrize("name", ["timeout", "dead_queue", "max_depth", "aging"])
async def test_null_removes_a_bound(rest: RestClient, name: str) -> None:
    given, field, _ = SETTINGS[name]
    await make(rest, **{name: given})
    assert (await rest.ask("PATCH", MAIL, {name: None}))[field] is None


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({}, (422, "usage")),
        ({"lease": "soon"}, (400, "invalid_request")),
        ({"lease": "8d"}, (422, "invalid_queue")),
        ({"max_attempts": -1}, (400, "invalid_request")),
        ({"backoff": "sometimes"}, (422, "invalid_queue")),
        ({"weights": {"acme": 0}}, (400, "invalid_request")),
        ({"dead_queue": "nowhere"}, (404, "unknown_queue")),
        ({"colour": "red"}, (400, "invalid_request")),
        ({"paused": True}, (400, "invalid_request")),
    ],
)
async def test_invalid_settings_are_refused(
    rest: RestClient, body: dict[str, Any], refusal: tuple[int, str]
) -> None:
    before = await make(rest)
    assert await rest.refused("PATCH", MAIL, body) == refusal
    assert (await rest.get(MAIL))["lease_ms"] == before["lease_ms"]


async def test_unknown_names_are_not_found(rest: RestClient) -> None:
    for method, path, body in (
        ("GET", MAIL, None),
        ("PATCH", MAIL, {"lease": 1}),
        ("DELETE", MAIL, None),
        ("POST", f"{MAIL}/pause", {}),
        ("POST", f"{MAIL}/resume", None),
        ("POST", f"{MAIL}/drain", {}),
        ("POST", f"{MAIL}/clear", {}),
        ("GET", f"{MAIL}/limits", None),
        ("GET", f"{MAIL}/tenants", None),
        ("PUT", f"{MAIL}/limits/a", {"concurrency": 1}),
        ("DELETE", f"{MAIL}/limits/a", None),
    ):
        status, code = await rest.refused(method, path, body)
        assert (method, path, status, code in ("not_found", "unknown_queue")) == (
            method, path, 404, True,
        )  # fmt: skip


async def test_invalid_names_are_refused(rest: RestClient) -> None:
    assert await rest.refused("POST", QUEUES, {"name": "a b"}) == (400, "invalid_request")
    assert await rest.refused("GET", f"{QUEUES}/{'x' * 81}") == (400, "invalid_request")


async def test_the_list_has_counts(rest: RestClient) -> None:
    await make(rest)
    await rest.enqueue({"id": "a"}, {"id": "b", "delay": 60}, queue="mail")
    mail = next(
        each for each in (await rest.get(QUEUES))["queues"] if each["name"] == "mail"
    )  # fmt: skip
    assert (mail["ready"], mail["delayed"], mail["leased"], mail["dead"]) == (1, 1, 0, 0)
    assert (mail["lease_ms"], mail["paused"], mail["estimated"]) == (30_000, False, [])
    assert mail == await rest.get(MAIL)


async def test_a_pause_shows_its_author_and_reason(rest: RestClient) -> None:
    await make(rest)
    await rest.enqueue({"id": "a"}, queue="mail")
    assert (await rest.post(f"{MAIL}/pause", {"text": "the disk"}))["paused"] is True
    assert await rest.lease("mail") == []
    pause = await read_pause(rest.store, "mail")
    assert (pause.by, pause.text) == ("local", "the disk")
    explained = await rest.get("/v1/jobs/a/explain")
    assert "local: the disk" in str(explained)
    assert (await rest.post(f"{MAIL}/resume"))["paused"] is False
    assert (await read_pause(rest.store, "mail")).by == ""
    assert len(await rest.lease("mail")) == 1


async def test_drain_closes_the_queue_and_counts_the_rest(rest: RestClient) -> None:
    await make(rest)
    await rest.enqueue({"id": "a"}, {"id": "b"}, queue="mail")
    left = await rest.post(f"{MAIL}/drain")
    assert left == {"queue": "mail", "accepting": False, "left": 2}
    body = {"jobs": [{"task": "t"}]}
    assert await rest.refused("POST", f"{MAIL}/jobs", body) == (409, "not_accepting")
    await rest.ask("PATCH", MAIL, {"accepting": True})
    await rest.enqueue({"id": "c"}, queue="mail")


async def test_drain_waits_until_it_is_empty(rest: RestClient) -> None:
    await make(rest)
    await rest.enqueue({"id": "a"}, queue="mail")
    [lease] = await rest.lease("mail")
    draining = asyncio.create_task(rest.post(f"{MAIL}/drain", {"wait": 30}))
    closed = False
    while not closed:
        # Each look is a turn of the loop, in which the request comes on.
        closed = not (await rest.get(MAIL))["accepting"]
    assert not draining.done()
    await rest.settle(verdict(lease, "complete"))
    assert (await draining)["left"] == 0


async def test_clear_deletes_waiting_jobs(rest: RestClient) -> None:
    await make(rest)
    await rest.enqueue(*({"id": f"m{at}"} for at in range(5)), queue="mail")
    await rest.enqueue({"id": "other"})
    [lease] = await rest.lease("mail")
    looked = await rest.post(f"{MAIL}/clear", {"dry_run": True})
    assert looked == {"queue": "mail", "found": 4, "more": False, "deleted": 0}
    assert len(await ids(rest, queue="mail")) == 5
    some = await rest.post(f"{MAIL}/clear", {"limit": 3})
    assert (some["more"], some["deleted"]) == (True, 3)
    rest_of = await rest.post(f"{MAIL}/clear")
    assert (rest_of["more"], rest_of["deleted"]) == (False, 1)
    assert await ids(rest, queue="mail") == {lease["job"]["id"]}
    assert await rest.refused("POST", f"{MAIL}/clear", {"states": ["leased"]}) == (422, "usage")
    assert (await rest.post(f"{MAIL}/clear", {"force": True}))["deleted"] == 1
    assert await ids(rest) == {"other"}
    assert await rest.settle(verdict(lease, "complete")) != ["settled"]


async def test_deleting_a_queue_deletes_its_jobs(rest: RestClient) -> None:
    await make(rest)
    await rest.enqueue({"id": "a"}, {"id": "b"}, queue="mail")
    await rest.post(f"{MAIL}/pause", {"text": "why"})
    looked = await rest.ask("DELETE", MAIL, dry_run="true")
    assert looked == {"queue": "mail", "jobs": 2, "deleted": False}
    gone = await rest.ask("DELETE", MAIL)
    assert gone == {"queue": "mail", "jobs": 2, "deleted": True}
    assert await ids(rest) == set()
    assert (await read_pause(rest.store, "mail")).text == ""
    assert await rest.refused("DELETE", MAIL) == (404, "not_found")


async def test_limits_are_set_shown_and_removed(rest: RestClient) -> None:
    await make(rest)
    where = f"{MAIL}/limits"
    kept = await rest.ask("PUT", f"{where}/slots", {"concurrency": 1, "key": "{tenant}"})
    assert kept == {"limits": [{"name": "slots", "key": "{tenant}", "concurrency": 1}]}
    # The names of tasks' own limits have a slash in them.
    kept = await rest.ask("PUT", f"{where}/mail%2Frate", {"rate": "10/m burst 2", "task": "t"})
    assert [each["name"] for each in kept["limits"]] == ["slots", "mail/rate"]
    await rest.enqueue({"id": "a", "tenant": "acme"}, {"id": "b", "tenant": "acme"}, queue="mail")
    [lease] = await rest.lease("mail", limit=5)
    shown = await rest.get(where)
    assert shown["limits"] == kept["limits"]
    slots = {(each["limit"], each["key"]): each for each in shown["slots"]}
    assert slots["slots", "acme"]["holders"] == [lease["job"]["id"]]
    await rest.ask("DELETE", f"{where}/mail%2Frate")
    left = await rest.ask("DELETE", f"{where}/slots")
    assert left == {"limits": []}
    assert await rest.refused("DELETE", f"{where}/slots") == (404, "not_found")
    assert len(await rest.lease("mail", limit=5)) == 1


@pytest.mark.parametrize(
    "body",
    [{}, {"rate": "often"}, {"rate": "0/s"}, {"concurrency": 0}, {"concurrency": 1, "key": "{"}],
)
async def test_invalid_limits_are_refused(rest: RestClient, body: dict[str, Any]) -> None:
    await make(rest)
    _, code = await rest.refused("PUT", f"{MAIL}/limits/a", body)
    assert code in ("usage", "invalid_request", "invalid_queue")
    assert (await stored(rest)).limits == ()


async def test_tenants_and_their_shares(rest: RestClient) -> None:
    await make(rest, fairness="shares", weights={"acme": 3})
    await rest.enqueue({"tenant": "acme"}, {"tenant": "acme"}, {"tenant": "bob"}, queue="mail")
    await rest.lease("mail")
    told = {each["tenant"]: each for each in (await rest.get(f"{MAIL}/tenants"))["tenants"]}
    assert (told["acme"]["weight"], told["bob"]["weight"]) == (3, 1)
    assert sum(each["waiting"] for each in told.values()) == 2
    assert sum(each["leased"] for each in told.values()) == 1


async def test_two_changes_at_once_are_both_kept(rest: RestClient) -> None:
    await make(rest)
    await asyncio.gather(*(rest.ask("PATCH", MAIL, {name: SETTINGS[name][0]}) for name in SETTINGS))
    queue = await rest.get(MAIL)
    assert {field: queue[field] for _, field, _ in SETTINGS.values()} == {
        field: kept for _, field, kept in SETTINGS.values()
    }


async def test_a_finished_job_is_cleared_by_its_state(rest: RestClient) -> None:
    await make(rest)
    await rest.enqueue({"id": "a"}, {"id": "b"}, queue="mail")
    [lease] = await rest.lease("mail")
    await rest.settle(verdict(lease, "complete"))
    assert (await rest.post(f"{MAIL}/clear", {"states": ["done"]}))["deleted"] == 1
    assert len(await ids(rest, states=(State.WAITING,))) == 1
