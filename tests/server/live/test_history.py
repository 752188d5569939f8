"""History over REST: counters by step and queue, for callers who may see them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.core.model import Failure, NewJob
from holdfast.core.verdict import Bury
from holdfast.engines.memory import MemoryEngine
from holdfast.notation.durations import show_at
from holdfast.ops.tokens import TokenRequest
from holdfast.process import wall_ms
from holdfast.server.settings import ServerSettings
from holdfast.telemetry.snapshots import Roller
from tests.server.metered_server import MeteredServer, metered_server

MINUTE = 60_000


@pytest.fixture
async def serving() -> AsyncIterator[MeteredServer]:
    async with metered_server(MemoryEngine()) as serving:
        yield serving


async def asked(serving: MeteredServer, **query: Any) -> Any:
    answer = await serving.client.get("/v1/history", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def an_hour(serving: MeteredServer, queue: str = "default") -> int:
    """Ten jobs in each of the last minutes; when they began."""
    start = wall_ms() // MINUTE * MINUTE - 30 * MINUTE
    for minute in range(30):
        await Roller(serving.app.engine, lambda at=start + minute * MINUTE: at).once()  # type: ignore[misc]
        await serving.work(10, queue=queue)
    return start


async def test_each_minute_is_a_point_and_the_last_ends_now(serving: MeteredServer) -> None:
    start = await an_hour(serving)
    await serving.app.engine.enqueue([NewJob(id="more", task="t")])
    found = await asked(serving, queue="default")
    points = found["points"]
    assert (found["step"], found["queue"], len(points)) == ("minute", "default", 30)
    assert [point["at"] for point in points] == [
        show_at(start + minute * MINUTE) for minute in range(30)
    ]
    assert {point["seconds"] for point in points[:-1]} == {60}
    for point in points:
        assert point["counts"] == {"enqueued": 10, "leased": 10, "completed": 10}
        assert 0 <= point["wait"]["p50"] <= point["wait"]["p95"] <= point["wait"]["p99"]
        assert point["run"]["mean"] >= 0
    assert (points[-1]["ready"], points[0]["ready"]) == (1, 0)
    assert points[-1]["oldest_age"] is not None


async def test_a_part_of_the_history(serving: MeteredServer) -> None:
    start = await an_hour(serving)
    since, before = show_at(start + 5 * MINUTE), show_at(start + 9 * MINUTE)
    found = await asked(serving, **{"from": since, "to": before})
    assert [point["at"] for point in found["points"]] == [
        show_at(start + minute * MINUTE) for minute in range(5, 9)
    ]
    assert found["queue"] is None


async def test_steps(serving: MeteredServer) -> None:
    await an_hour(serving)
    await serving.work(5, Bury(failure=Failure()))
    for step in ("hour", "day"):
        points = (await asked(serving, step=step, **{"from": "3d"}))["points"]
        assert sum(point["counts"]["enqueued"] for point in points) == 305
        assert sum(point["counts"].get("dead", 0) for point in points) == 5
        assert points[-1]["dead"] == 5


async def test_nothing_counted_yet_is_an_empty_chart(serving: MeteredServer) -> None:
    assert (await asked(serving))["points"] == []


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({"queue": "nowhere"}, 404, "unknown_queue"),
        ({"step": "week"}, 400, "invalid_request"),
        ({"from": "2d"}, 422, "usage"),
        ({"from": "whenever"}, 422, "usage"),
        ({"colour": "red"}, 400, "invalid_request"),
    ],
)
async def test_invalid_values_are_refused(
    serving: MeteredServer, query: dict[str, str], status: int, code: str
) -> None:
    answer = await serving.client.get("/v1/history", params=query)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


async def test_a_prefix_sees_only_its_queues() -> None:
    async with metered_server(MemoryEngine(), ServerSettings(auth=True)) as serving:
        await serving.app.declare("mail")
        await Roller(serving.app.engine, lambda: wall_ms() - MINUTE).once()
        await serving.work(3)
        await serving.work(4, queue="mail")
        wanted = TokenRequest(name="t", scopes=("operate",), prefix="mail")
        text, _ = await serving.server.tokens.create(wanted)
        serving.client.headers["Authorization"] = f"Bearer {text}"
        [point] = (await asked(serving))["points"]
        assert point["counts"] == {"enqueued": 4, "leased": 4, "completed": 4}
        answer = await serving.client.get("/v1/history", params={"queue": "default"})
        assert answer.status_code == 404
