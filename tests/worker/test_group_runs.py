"""Real workers on strict groups whose members come several at a time."""

import os
import random
import signal

import pytest

from holdfast.core.model import State
from tests.worker.live_workers import Place, until

GROUPS, MEMBERS = 5, 12
KINDS = ("come", "come_alone", "come_together", "command")


def broken_order(place: Place) -> list[str]:
    """No member starts before all that came earlier have ended, nor after a later one started."""
    ended: dict[str, set[int]] = {}
    latest: dict[str, int] = {}
    wrong = []
    for entry in place.journal():
        group, _, text = entry.id.partition("-")
        number = int(text)
        if entry.word == "end":
            ended.setdefault(group, set()).add(number)
            continue
        if latest.get(group, 0) > number or not ended.get(group, set()) >= set(range(number)):
            wrong.append(f"{entry.id} started out of turn, in attempt {entry.attempt}")
        latest[group] = max(latest.get(group, 0), number)
    return wrong


async def test_order_holds_through_retries_releases_and_kills(place: Place) -> None:
    await go_through_trouble(place)


async def test_order_holds_on_postgresql_too(pg_place: Place) -> None:
    await go_through_trouble(pg_place)


async def go_through_trouble(place: Place) -> None:
    """Four children, which kill themselves now and then; their supervisor is killed once, with
    all that it holds."""
    seed = random.randrange(2**32)
    print(f"seed {seed}: put it in the place of the random one to see this again")
    await place.app.declare(
        "default",
        group_batch=5,
        lease="3s",
        max_attempts=0,
        max_crashes=1_000,
        backoff="constant(20ms)",
    )
    ids = [f"g{group}-{number}" for number in range(MEMBERS) for group in range(GROUPS)]
    payload = {"folder": str(place.folder), "seed": seed}
    for id_ in ids:
        await place.enqueue("fickle", id_, group=id_.partition("-")[0], payload=payload)
    await place.launcher(place.options(processes=4, concurrency=1, prefetch=50))
    await until(lambda: len(place.journal("end")) > MEMBERS, "some to come through")
    (view,) = await place.workers()
    os.kill(view.record.pid, signal.SIGKILL)
    jobs = await place.finished(*ids)
    assert {job.state for job in jobs} == {State.DONE}
    assert broken_order(place) == []
    behind = [job for job in jobs for event in job.events if "runs again" in event.text]
    assert behind, "nobody was ever sent back behind another"


@pytest.mark.parametrize("processes", [2, 0])
async def test_members_of_all_kinds_come_one_after_the_other(place: Place, processes: int) -> None:
    """Each fails for good unless the one before it has completed."""
    await place.app.declare("default", group_batch=8, max_attempts=1)
    ids = [f"{number}" for number in range(24)]
    for number, id_ in enumerate(ids):
        task = KINDS[number % 4] if number < 16 else "come_together"
        payload: dict[str, object] = {"folder": str(place.folder), "number": number}
        if task == "command":
            text = f"test -e came-{number - 1} && touch came-{number}"
            payload = {"command": ["sh", "-c", text], "cwd": str(place.folder)}
        await place.enqueue(task, id_, group="g", payload=payload)
    await place.worker(processes=processes, commands=True, prefetch=50)
    jobs = await place.finished(*ids)
    assert [job.state for job in jobs] == [State.DONE] * 24, [job.failures for job in jobs]
