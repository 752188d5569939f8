"""The number of workers to run, for people and for autoscalers."""

from typing import Any

import pytest

from tests.server.rest.test_workers import come
from tests.server.rest_client import RestClient, verdict

SCALING = "/v1/scaling"


async def load(rest: RestClient, *, waiting: int, run_ms: int, queue: str = "default") -> None:
    """Jobs that wait, after one that took so long."""
    await rest.enqueue({"id": f"{queue}-first"}, queue=queue)
    [lease] = await rest.lease(queue)
    rest.clock.advance(run_ms)
    await rest.settle(verdict(lease, "complete"))
    if waiting:
        await rest.enqueue(*({} for _ in range(waiting)), queue=queue)


def read_by_keda(answer: Any, location: str) -> float:
    """As its metrics-api scaler reads a number: by a path of names and places in lists."""
    value = answer
    for part in location.split("."):
        value = value[int(part)] if part.isdigit() else value[part]
    assert isinstance(value, int | float)
    assert not isinstance(value, bool)
    return value


async def test_more_work_needs_more_workers(rest: RestClient) -> None:
    await come(rest, "w", capacity=4)
    await load(rest, waiting=0, run_ms=20_000)
    idle = await rest.get(SCALING, queue="default", target_wait="30s")
    await rest.enqueue(*({} for _ in range(100)))
    busy = await rest.get(SCALING, queue="default", target_wait="30s")
    [advice] = busy["queues"]
    assert idle["workers"] < busy["workers"] == advice["workers"]
    assert (advice["queue"], advice["load"]["waiting"]) == ("default", 100)
    assert (advice["goal"]["wait_ms"], advice["goal"]["worker_slots"]) == (30_000, 4)
    rest.clock.advance(60 * 60_000)
    hurried = await rest.get(SCALING, queue="default", target_wait="1s")
    patient = await rest.get(SCALING, queue="default", target_wait="1h")
    assert patient["workers"] < hurried["workers"]


async def test_the_answer_suits_keda(rest: RestClient) -> None:
    await load(rest, waiting=50, run_ms=10_000)
    answer = await rest.get(SCALING, queue="default", target_wait="30s", slots="1", max="5")
    assert read_by_keda(answer, "workers") == 5
    assert read_by_keda(answer, "queues.0.workers") == 5
    least = await rest.get(SCALING, queue="default", min="2", slots="1000")
    assert read_by_keda(least, "workers") == 2


async def test_all_queues_together_are_rounded_up_once(rest: RestClient) -> None:
    await rest.post("/v1/queues", {"name": "mail"}, status=201)
    await load(rest, waiting=3, run_ms=1_000)
    await load(rest, waiting=3, run_ms=1_000, queue="mail")
    answer = await rest.get(SCALING, slots="100")
    assert [each["queue"] for each in answer["queues"]] == ["default", "mail"]
    assert [each["workers"] for each in answer["queues"]] == [1, 1]
    assert answer["slots"] == sum(each["slots"] for each in answer["queues"])
    assert answer["workers"] == 1


@pytest.mark.parametrize(
    ("query", "refusal"),
    [
        ({"queue": "none"}, (404, "unknown_queue")),
        ({"target_wait": "0"}, (422, "usage")),
        ({"target_wait": "soon"}, (400, "invalid_request")),
        ({"slots": "0"}, (400, "invalid_request")),
        ({"min": "5", "max": "4"}, (422, "usage")),
        ({"workers_min": "5"}, (400, "invalid_request")),
    ],
)
async def test_invalid_goals_are_refused(
    rest: RestClient, query: dict[str, str], refusal: tuple[int, str]
) -> None:
    assert await rest.refused("GET", SCALING, **query) == refusal
