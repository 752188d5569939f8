"""Real workers on jobs with limits, groups and parents."""

from holdfast.core.model import State
from tests.worker.live_workers import Place, until


async def leased(place: Place, queue: str) -> int:
    return next(view.leased for view in await place.app.queues() if view.queue.name == queue)


async def test_limits_of_a_task_hold_for_all_workers(place: Place) -> None:
    """Its limit is set before any of its jobs is leased, even of those that wait already."""
    await place.app.declare("narrow")
    ids = [f"j{number}" for number in range(8)]
    await place.enqueue("two_at_a_time", *ids, queue="narrow")
    for name in ("a", "b"):
        await place.worker(name=name, queues={"narrow": 1})
    await until(lambda: len(place.journal("start")) == 2, "both slots to be taken")
    assert await leased(place, "narrow") == 2
    (slot,) = (await place.app.flow("narrow")).slots
    assert (slot.used, slot.concurrency) == (2, 2)
    assert set(slot.holders) == {entry.id for entry in place.journal("start")}
    place.go()
    jobs = await place.finished(*ids)
    assert {job.state for job in jobs} == {State.DONE}
    running = most = 0
    for entry in place.journal():
        running += 1 if entry.word == "start" else -1
        most = max(most, running)
    assert most == 2


async def test_a_group_runs_one_by_one_as_it_came(place: Place) -> None:
    ids = [f"j{number}" for number in range(12)]
    for number, id_ in enumerate(ids):
        await place.enqueue("note", id_, group="g", priority=number % 3)
    for name in ("a", "b"):
        await place.worker(name=name)
    await place.finished(*ids)
    assert [entry.id for entry in place.journal("start")] == ids


async def test_a_job_can_read_the_results_of_its_parents(place: Place) -> None:
    await place.worker()
    await place.enqueue("note", "a", "b", delay=0.2)
    await place.enqueue("heirs", "child", after=["b", "a"], payload={"url": place.url})
    assert (await place.job("child")).state is State.WAITING
    (child,) = await place.finished("child")
    parents = await place.finished("a", "b")
    assert (child.state, child.result) == (State.DONE, b'["b","a"]'), child.failures
    assert child.leased_at is not None
    assert all(child.leased_at >= (parent.finished_at or 0) for parent in parents)
