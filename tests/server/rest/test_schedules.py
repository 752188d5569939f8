"""Schedules over REST."""

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.core.model import JobFilter, NewJob, Record
from holdfast.engines.base import Saved
from holdfast.ops.schedules import Schedules
from holdfast.ops.ticks import Schedule
from holdfast.process import wall_ms
from tests.server.rest_client import RestClient

SCHEDULES = "/v1/schedules"
NIGHTLY = f"{SCHEDULES}/nightly"


async def add(rest: RestClient, **more: Any) -> Any:
    body = {
        "name": "nightly",
        "cron": "0 3 * * *",
        "zone": "Europe/Berlin",
        "job": {"task": "report:make", "payload": {"all": True}, "priority": 3},
        **more,
    }
    return await rest.post(SCHEDULES, body, status=201)


async def stored(rest: RestClient) -> Schedule:
    schedule = await Schedules(rest.store, wall_ms).get("nightly")
    assert schedule is not None
    return schedule


async def test_a_schedule_is_added_once_and_shown(rest: RestClient) -> None:
    added = await add(rest)
    assert (added["name"], added["cron"], added["zone"]) == (
        "nightly", "0 3 * * *", "Europe/Berlin",
    )  # fmt: skip
    assert (added["task"], added["payload"], added["priority"]) == (
        "report:make", {"all": True}, 3,
    )  # fmt: skip
    assert added["next_tick"] is not None
    assert await rest.get(NIGHTLY) == added
    assert await rest.get(SCHEDULES) == {"schedules": [added]}
    body = {"name": "nightly", "every": "1h", "job": {"task": "t"}}
    assert await rest.refused("POST", SCHEDULES, body) == (409, "exists")


async def test_fields_that_are_not_given_stay(rest: RestClient) -> None:
    await add(rest, job={"task": "t", "payload": 1, "max_attempts": 9, "labels": {"a": "b"}})
    changed = await rest.ask("PATCH", NIGHTLY, {"every": "10m", "job": {"priority": 5}})
    assert (changed["cron"], changed["every_ms"]) == (None, 600_000)
    job = (await stored(rest)).job
    assert (job.task, job.payload, job.priority) == ("t", b"1", 5)
    assert (job.overrides.max_attempts, job.labels) == (9, {"a": "b"})
    assert await rest.refused("PATCH", NIGHTLY, {}) == (422, "usage")


async def test_pause_and_resume(rest: RestClient) -> None:
    await add(rest)
    paused = await rest.post(f"{NIGHTLY}/pause")
    assert (paused["paused"], paused["next_tick"]) == (True, None)
    resumed = await rest.post(f"{NIGHTLY}/resume")
    assert resumed["paused"] is False
    assert resumed["next_tick"] is not None


async def test_run_now_enqueues_once_by_its_id(rest: RestClient) -> None:
    await add(rest)
    first = await rest.post(f"{NIGHTLY}/run", {"id": "mine"}, status=201)
    again = await rest.post(f"{NIGHTLY}/run", {"id": "mine"}, status=201)
    assert (first, again) == (
        {"id": "mine", "status": "new"},
        {"id": "mine", "status": "duplicate"},
    )
    assert (await rest.job("mine")).headers == {"schedule": "nightly"}
    other = await rest.post(f"{NIGHTLY}/run", status=201)
    page = await rest.store.find(JobFilter(), limit=10)
    assert {job.id for job in page.jobs} == {"mine", other["id"]}


async def test_a_removed_schedule_is_gone(rest: RestClient) -> None:
    added = await add(rest)
    assert await rest.ask("DELETE", NIGHTLY) == added
    assert await rest.get(SCHEDULES) == {"schedules": []}


async def test_the_next_ticks(rest: RestClient) -> None:
    added = await add(rest)
    ticks = (await rest.get(f"{NIGHTLY}/ticks", count=3))["ticks"]
    assert (len(ticks), ticks[0]) == (3, added["next_tick"])
    hourly = (await rest.get(f"{NIGHTLY}/ticks", cron="30 * * * *", count=2))["ticks"]
    assert all(tick.endswith(":30:00Z") for tick in hourly)
    loose = (await rest.get("/v1/ticks", every="1h", count=4))["ticks"]
    assert len(loose) == 4
    far = (await rest.get("/v1/ticks", every="36500d", count=100))["ticks"]
    assert 70 < len(far) < 100
    assert await rest.refused("GET", "/v1/ticks", every="0") == (422, "config")
    assert await rest.refused("GET", "/v1/ticks") == (422, "usage")
    assert await rest.refused("GET", "/v1/ticks", cron="* *") == (422, "config")
    assert await rest.refused("GET", "/v1/ticks", cron="@daily", every="1h") == (422, "usage")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", NIGHTLY), ("DELETE", NIGHTLY), ("POST", f"{NIGHTLY}/pause"),
        ("POST", f"{NIGHTLY}/resume"), ("POST", f"{NIGHTLY}/run"), ("GET", f"{NIGHTLY}/ticks"),
    ],
)  # fmt: skip
async def test_unknown_names_are_not_found(rest: RestClient, method: str, path: str) -> None:
    assert await rest.refused(method, path) == (404, "not_found")


@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        ({"cron": None}, (422, "usage")),
        ({"every": "1h"}, (422, "usage")),
        ({"cron": "nonsense"}, (422, "config")),
        ({"zone": "Mars/Base"}, (422, "config")),
        ({"job": {}}, (422, "invalid_job")),
        ({"job": {"task": "t", "id": "x"}}, (400, "invalid_request")),
        ({"job": {"task": "t", "key": "x"}}, (400, "invalid_request")),
        ({"job": {"task": "t", "queue": "none"}}, (404, "unknown_queue")),
        ({"missed_max": 0}, (400, "invalid_request")),
    ],
)
async def test_invalid_schedules_are_refused(
    rest: RestClient, more: dict[str, Any], refusal: tuple[int, str]
) -> None:
    body = {"name": "nightly", "cron": "0 3 * * *", "job": {"task": "t"}, **more}
    assert await rest.refused("POST", SCHEDULES, body) == refusal
    assert await rest.get(SCHEDULES) == {"schedules": []}


async def test_the_job_of_a_schedule_has_no_state(rest: RestClient) -> None:
    body = {"name": "nightly", "cron": "0 3 * * *", "job": {"task": "t", "state": "x"}}
    answer = await rest.client.post(SCHEDULES, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].endswith("the queue sets it: leave it out")


@pytest.mark.parametrize("job", [{"command": ["rm", "-rf"]}, {"webhook": "http://127.0.0.1/x"}])
async def test_command_schedules_need_a_token_with_run_commands(
    rest: RestClient, job: dict[str, Any]
) -> None:
    body = {"name": "nightly", "cron": "0 3 * * *", "job": job}
    assert await rest.refused("POST", SCHEDULES, body) == (403, "forbidden")
    await add(rest)
    assert await rest.refused("PATCH", NIGHTLY, {"job": job}) == (403, "forbidden")
    assert (await stored(rest)).job.task == "report:make"


async def test_a_command_schedule_can_be_paused_but_not_run(rest: RestClient) -> None:
    job = NewJob(id="-", task="command", payload=b'{"command":["true"]}')
    await Schedules(rest.store, wall_ms).add(Schedule(name="nightly", job=job, every_ms=60_000))
    assert (await rest.post(f"{NIGHTLY}/pause"))["paused"] is True
    assert await rest.refused("POST", f"{NIGHTLY}/run") == (403, "forbidden")
    assert (await rest.store.find(JobFilter(), limit=1)).jobs == ()


async def test_a_concurrent_add_of_the_same_schedule_is_refused(
    rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have looked, and neither has found it."""
    save = rest.store.save

    async def late(records: Sequence[Record]) -> list[Saved]:
        monkeypatch.setattr(rest.store, "save", save)
        await add(rest)
        return await save(records)

    monkeypatch.setattr(rest.store, "save", late)
    body = {"name": "nightly", "every": "1h", "job": {"task": "t"}}
    assert await rest.refused("POST", SCHEDULES, body) == (409, "exists")
    assert (await rest.get(NIGHTLY))["cron"] == "0 3 * * *"
