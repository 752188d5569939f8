"""Dead letters of real workers, and redrives by their upkeep."""

import signal
from pathlib import Path

import pytest

from holdfast.core.limits import Rate
from holdfast.core.model import EventKind, JobFilter, Reason, State
from holdfast.ops.dead_letters import DeadGroup, dead_groups
from holdfast.ops.redrives import RedrivePlan, RedriveState, RedriveView
from holdfast.process import wall_ms
from tests.worker.live_workers import Place, until

TARGET = f"{Path(__file__).with_name('redrive_app.py')}:app"


async def broken(place: Place, task: str, count: int, max_attempts: int = 1) -> list[str]:
    ids = [f"{task}-{number}" for number in range(count)]
    jobs = [
        place.app.job(
            task,
            {"folder": str(place.folder), "order": number},
            id=id_,
            max_attempts=max_attempts,
        )
        for number, id_ in enumerate(ids)
    ]
    await place.app.enqueue_many(jobs)
    return ids


async def all_dead(place: Place, count: int) -> None:
    async def look() -> bool:
        tallies = await place.app.tally(JobFilter(), "state")
        return [(each.value, each.count) for each in tallies] == [("dead", count)]

    await until(look, f"the death of {count}")


async def groups(place: Place) -> dict[str, DeadGroup]:
    found = await dead_groups(place.app.engine, JobFilter(), now=wall_ms())
    return {group.type: group for group in found.groups}


async def ended(place: Place, id: str) -> RedriveView:
    async def look() -> RedriveView | None:
        view = await place.app.redrives.get(id)
        assert view is not None
        return view if view.redrive.followed else None

    view = await until(look, f"the end of redrive {id}")
    assert view is not None
    return view


async def times_put_back(place: Place, ids: list[str]) -> set[int]:
    jobs = [await place.job(id_) for id_ in ids]
    return {sum(event.kind is EventKind.REDRIVEN for event in job.events) for job in jobs}


async def test_from_two_errors_to_none(place: Place) -> None:
    await place.worker(target=TARGET)
    charged = await broken(place, "charge", 120)
    shipped = await broken(place, "ship", 15)
    await all_dead(place, 135)
    found = await groups(place)
    assert {name: group.count for name, group in found.items()} == {
        "ValueError": 120, "LookupError": 15,
    }  # fmt: skip
    assert found["ValueError"].tasks == {"charge": 120}
    print_ = found["ValueError"].fingerprint
    assert print_ is not None
    plan = RedrivePlan(wanted=JobFilter(fingerprint=print_), by="ann", canary=True)

    stopped = await ended(place, (await place.app.redrives.start(plan)).id)
    assert stopped.redrive.state is RedriveState.STOPPED
    assert f"fingerprint {print_} recurred in job charge-" in stopped.redrive.text
    assert (stopped.redrive.total, stopped.redrive.retried, stopped.recurred) == (120, 2, 2)

    (place.folder / "fixed").touch()
    finished = await ended(place, (await place.app.redrives.start(plan)).id)
    assert finished.redrive.state is RedriveState.FINISHED
    assert (finished.redrive.retried, finished.done, finished.died) == (120, 120, 0)
    assert set(await groups(place)) == {"LookupError"}
    assert {(await place.job(id_)).state for id_ in charged} == {State.DONE}
    assert {(await place.job(id_)).state for id_ in shipped} == {State.DEAD}
    assert await times_put_back(place, charged) == {1, 2}


@pytest.mark.parametrize("survivors", [0, 1])
async def test_killed_in_the_middle_it_is_finished_by_another(place: Place, survivors: int) -> None:
    """Each of its jobs is redriven once and the counts are right, whichever worker finishes it."""
    await place.app.declare("default", lease="3s", backoff="constant(1ms)")
    first = await place.worker(target=TARGET, name="first")
    # One attempt is lost by those that it had in hand when it was killed.
    ids = await broken(place, "charge", 60, max_attempts=4)
    await all_dead(place, 60)
    (place.folder / "fixed").touch()
    for number in range(survivors):
        await place.worker(target=TARGET, name=f"other{number}")
    plan = RedrivePlan(wanted=JobFilter(task="charge"), rate=Rate(count=20, per_ms=1_000))
    id_ = (await place.app.redrives.start(plan)).id

    async def halfway() -> bool:
        view = await place.app.redrives.get(id_)
        return view is not None and view.redrive.retried >= 20

    await until(halfway, "the first few")
    first.send_signal(signal.SIGKILL)
    first.wait()
    if not survivors:
        await place.worker(target=TARGET, name="next")
    view = await ended(place, id_)
    told = view.redrive
    assert (told.state, told.retried, told.changed) == (RedriveState.FINISHED, 60, 0)
    assert (view.done, view.died) == (60, 0)
    assert await times_put_back(place, ids) == {1}


async def test_a_cancel_leaves_the_rest_dead(place: Place) -> None:
    await place.worker(target=TARGET)
    ids = await broken(place, "ship", 20)
    await all_dead(place, 20)
    (place.folder / "fixed").touch()
    plan = RedrivePlan(wanted=JobFilter(task="ship"), rate=Rate(count=1, per_ms=3_600_000))
    id_ = (await place.app.redrives.start(plan)).id

    async def begun() -> bool:
        view = await place.app.redrives.get(id_)
        return view is not None and view.redrive.retried > 0

    await until(begun, "its first")
    await place.app.redrives.cancel(id_, "bob")
    view = await ended(place, id_)
    assert (view.redrive.state, view.redrive.text) == (RedriveState.CANCELLED, "by bob")
    assert view.done == view.redrive.retried == 1
    states = [(await place.job(id_)).state for id_ in ids]
    assert (states.count(State.DONE), states.count(State.DEAD)) == (1, 19)


async def test_a_crashed_job_is_redriven_alone(place: Place) -> None:
    """Beside it another job runs, which its crash must not touch."""
    await place.worker(concurrency=2)
    await place.enqueue("die", "a", max_crashes=1)
    (job,) = await place.finished("a")
    assert job.reason is Reason.CRASHED
    await place.enqueue("hold", "b")
    await place.started("b")
    plan = RedrivePlan(wanted=JobFilter(ids=("a",)), canary=True)
    view = await ended(place, (await place.app.redrives.start(plan)).id)
    assert view.redrive.state is RedriveState.STOPPED
    assert (view.recurred, (await place.job("a")).crashes) == (1, 1)
    place.go()
    (other,) = await place.finished("b")
    assert (other.state, other.attempt, other.releases) == (State.DONE, 1, 0)
