"""Schedules over REST."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.model import JobFilter, NewJob, Record
from holdfast.engines.base import Saved
from holdfast.notation.durations import show_at
from holdfast.ops.schedules import SCHEDULES as STORED
from holdfast.ops.schedules import Schedules, tick_id
from holdfast.ops.ticks import Schedule, past_ticks
from holdfast.process import wall_ms
from holdfast.server.rest import schedules as module
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


async def test_past_runs_have_the_states_of_their_jobs(
    rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = wall_ms()
    monkeypatch.setattr(module, "wall_ms", lambda: now)
    added = await add(rest)
    assert added["words"] == "At 03:00 every day (Europe/Berlin)"
    assert await rest.get(f"{NIGHTLY}/runs") == {"runs": []}
    ticks = past_ticks(await stored(rest), now, 5)
    ids = [tick_id("nightly", tick) for tick in ticks]
    await rest.store.enqueue(
        [NewJob(id=ids[at], queue="default", task="t", key=f"k{at}") for at in (1, 3)]
    )
    [lease] = await rest.lease(limit=1)
    await rest.settle({"id": ids[1], "token": lease["token"], "verdict": "complete"})
    runs = (await rest.get(f"{NIGHTLY}/runs"))["runs"]
    assert [(run["tick"], run["id"], run["state"]) for run in runs] == [
        (show_at(ticks[4]), ids[4], None),
        (show_at(ticks[3]), ids[3], "waiting"),
        (show_at(ticks[2]), ids[2], None),
        (show_at(ticks[1]), ids[1], "done"),
    ]
    done = await rest.get(f"/v1/jobs/{ids[1]}")
    for name in ("attempts", "leased_at", "finished_at", "duration_ms"):
        assert runs[3][name] == done[name]
    assert (await rest.get(f"{NIGHTLY}/runs", count=2))["runs"] == runs[:2]
    for count in (0, 101):
        refused = await rest.refused("GET", f"{NIGHTLY}/runs", count=count)
        assert refused == (400, "invalid_request")
    assert await rest.refused("GET", f"{SCHEDULES}/none/runs") == (404, "not_found")


async def test_the_last_tick_by_an_earlier_rule_is_a_past_run(rest: RestClient) -> None:
    await add(rest)
    last = 1_700_000_000_123
    await STORED.update(
        rest.store, "nightly", lambda old: replace(old, last_tick=last) if old else old
    )
    id_ = tick_id("nightly", last)
    await rest.store.enqueue([NewJob(id=id_, queue="default", task="t")])
    await rest.ask("PATCH", NIGHTLY, {"cron": "0 0 29 2 *"})
    runs = (await rest.get(f"{NIGHTLY}/runs"))["runs"]
    assert (runs[-1]["id"], runs[-1]["state"]) == (id_, "waiting")
