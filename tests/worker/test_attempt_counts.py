"""The store counts the attempts of workers attached to it, also of killed ones."""

import signal

import pytest

from holdfast.telemetry.accounts import ACCOUNT_KIND
from tests.telemetry.faulty_saves import count_of, fleet_of
from tests.worker.live_workers import Place, until


@pytest.mark.parametrize("upkeep", [True, False])
async def test_a_worker_is_counted(place: Place, upkeep: bool) -> None:
    process = await place.worker(upkeep=upkeep)
    await place.enqueue("note", "a", "b", "c")
    await place.finished("a", "b", "c")
    engine = place.app.engine

    async def seen() -> bool:
        return await count_of(engine, "completed") == 3

    await until(seen, "the counts")
    assert (await fleet_of(engine)).processes == 1
    process.send_signal(signal.SIGTERM)
    await until(lambda: process.poll() is not None, "the end of the worker")
    fleet = await fleet_of(engine)
    queue = fleet.totals.queues["default"]
    assert (fleet.processes, queue.runs.count, queue.waits.count) == (0, 3, 3)
    assert [record.key.partition("-")[0] for record in await engine.load(ACCOUNT_KIND, limit=10)][
        -1
    ] == ("worker")


async def test_workers_that_are_killed_lose_their_last_seconds_and_count_nothing_twice(
    place: Place,
) -> None:
    engine = place.app.engine
    least = 0
    for number in range(3):
        process = await place.worker(name=f"w{number}")
        names = [f"{number}-{each}" for each in range(40)]
        await place.enqueue("note", *names[:20])
        least = await more_than(place, least)
        await place.enqueue("note", *names[20:])
        await place.finished(*names[20:30])
        process.kill()
        process.wait()
    await place.worker(name="last")
    await place.enqueue("note", "last")
    await place.finished("last")
    await more_than(place, least)
    assert await count_of(engine, "completed") <= 3 * 40 + 1


async def more_than(place: Place, least: int) -> int:
    """Wait until more jobs are counted as completed; returns how many."""

    async def look() -> int:
        found = await count_of(place.app.engine, "completed")
        return found if found > least else 0

    return await until(look, f"a count of more than {least}")
