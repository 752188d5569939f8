"""Real workers hand dead letters to their handlers, and pass them by without one."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.app.application import Holdfast
from holdfast.core.model import JobFilter, Reason, State
from holdfast.core.verdict import BuryWaiting
from holdfast.errors import UsageError
from holdfast.ops.dead_letters import DeadLetter
from tests.worker.live_workers import Place, until

TARGET = f"{Path(__file__).with_name('dead_letter_app.py')}:app"


async def declare(place: Place, **settings: Any) -> None:
    await place.app.declare("grave")
    await place.app.declare("orders", max_attempts=2, backoff="constant(1ms, jitter=0)", **settings)


async def enqueue(place: Place, *ids: str, **options: Any) -> None:
    for number, id_ in enumerate(ids):
        payload = {"folder": str(place.folder), "number": number}
        await place.app.enqueue("fail", payload, id=id_, queue="orders", **options)


def letters(place: Place) -> list[dict[str, Any]]:
    file = place.folder / "letters"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def gone(place: Place, id_: str) -> None:
    async def look() -> bool:
        return await place.app.get(id_) is None

    await until(look, f"the end of {id_}")


async def test_a_handler_gets_the_dead_letters_of_its_queue(place: Place) -> None:
    await declare(place, dead_queue="grave")
    await place.worker(target=TARGET)
    await enqueue(place, "a")
    await gone(place, "a")
    assert letters(place) == [
        {
            "id": "a", "poison": True, "task": "fail", "queue": "grave", "origin": "orders",
            "reason": "attempts", "attempts": 2, "number": 0,
            "failures": [f"no order 0 in {place.folder}"] * 2,
        }
    ]  # fmt: skip


async def test_and_those_that_died_in_place(place: Place) -> None:
    await declare(place)
    await place.worker(target=TARGET)
    await enqueue(place, "a")
    await gone(place, "a")
    assert letters(place) == [{"id": "a", "origin": "orders"}]


async def test_a_handler_that_fails_is_called_again(place: Place) -> None:
    await declare(place, dead_queue="grave")
    (place.folder / "deaf").touch()
    await place.worker(target=TARGET)
    await enqueue(place, "a")

    async def look() -> bool:
        job = await place.app.get("a")
        return job is not None and job.releases >= 2

    await until(look, "two releases")
    job = await place.job("a")
    assert (job.attempt, job.reason) == (2, Reason.ATTEMPTS)
    (place.folder / "deaf").unlink()
    await gone(place, "a")
    assert [letter["attempts"] for letter in letters(place)] == [2]


async def test_a_handler_that_dies_is_called_again_alone(place: Place) -> None:
    await declare(place, dead_queue="grave")
    await place.worker(target=TARGET)
    await enqueue(place, "a", labels={"deadly": "1"})
    await gone(place, "a")
    assert [letter["id"] for letter in letters(place)] == ["a"]


async def test_a_worker_without_a_handler_passes_them_by(place: Place) -> None:
    await declare(place, dead_queue="grave")
    (place.folder / "fixed").touch()
    payload = {"folder": str(place.folder), "order": 1}
    await place.app.enqueue("charge", payload, id="a", queue="orders")
    await place.app.amend(JobFilter(ids=("a",)), BuryWaiting())
    await place.app.enqueue("charge", payload, id="b", queue="grave")
    target = f"{Path(__file__).with_name('redrive_app.py')}:app"
    await place.worker(target=target, queues={"grave": 1})

    async def look() -> bool:
        return (await place.job("b")).state is State.DONE

    await until(look, "the end of b")
    job = await place.job("a")
    assert (job.state, job.queue, job.version) == (State.DEAD, "grave", 2)


def test_one_handler_for_each_queue() -> None:
    app = Holdfast("memory:")

    @app.on_dead_letter()
    def first(letter: DeadLetter) -> None:
        raise NotImplementedError

    with pytest.raises(UsageError, match="queue default already has a handler"):
        app.on_dead_letter("default")(first)
    with pytest.raises(UsageError, match="not a str"):
        app.on_dead_letter("other")("first")  # type: ignore[arg-type]
    assert [(each.dead, each.queue) for each in app.handlers.values()] == [(True, "default")]
