"""A full move: nothing is lost or changed, also with crashes on the way."""

import itertools
from typing import Any

import pytest

from holdfast.core.model import JobFilter, NewJob, Queue, Record
from holdfast.core.verdict import Delete
from holdfast.core.workers import KIND as WORKER_KIND
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import UsageError
from holdfast.ops.gates import Gate, Gates
from holdfast.ops.migrate.progress import QueueSwitches, SourceProgress, source_progress
from holdfast.ops.migrate.steps import reopen
from holdfast.ops.queues import Pause, read_pause, save_pause
from holdfast.ops.schedules import Schedules
from holdfast.ops.settings import SETTING_KIND
from holdfast.ops.ticks import Schedule
from tests.killed import Killed
from tests.ops.migrate import sample_jobs
from tests.ops.migrate.sample_jobs import all_of, mover_of
from tests.ops.migrate.stores import Stores, dump, queues


async def test_everything_moves(stores: Stores) -> None:
    await sample_jobs.fill(stores.old)
    before, shape = await dump(stores.old), await queues(stores.old)
    schedules = Schedules(stores.old, stores.clock.wall_ms)
    await schedules.add(Schedule(name="nightly", every_ms=1000, job=NewJob(id="n", task="t")))
    words = [
        Record(kind=SETTING_KIND, key="lease", value=b'"1m"'),
        Record(kind=WORKER_KIND, key="w", value=b"{}"),
    ]
    await stores.old.save(words)
    await save_pause(stores.old, "shut", Pause(by="me", text="as it was"))
    gate = Gate(name="in", direction="inlet", broker="b", queue="shut", source="s", task="t")
    await Gates(stores.old).add(gate)
    moved = await stores.move()
    assert moved.is_verified
    assert moved.comparison is not None
    assert moved.comparison.wrong == []
    assert await dump(stores.new) == before
    assert await dump(stores.old) == before
    assert await queues(stores.new) == shape
    assert moved.records == {
        "schedule": 1,
        "setting": 1,
        "pause": 1,
        "distribution": 0,
        "gate": 1,
        "sqs-queue": 0,
    }
    assert await Gates(stores.new).all() == [gate]
    assert await Schedules(stores.new, stores.clock.wall_ms).all() == await schedules.all()
    assert (await read_pause(stores.new, "shut")).by == "me"
    assert await stores.new.load(WORKER_KIND, limit=10) == []
    for state, found in moved.comparison.source.items():
        assert found == moved.comparison.target[state]


async def test_the_old_store_is_closed_and_can_be_opened_again(stores: Stores) -> None:
    await sample_jobs.fill(stores.old)
    shape = await queues(stores.old)
    await stores.move()
    assert all(each.paused and not each.accepting for each in (await queues(stores.old)).values())
    assert (await read_pause(stores.old, "plain")).text == "everything was moved to new"
    assert (await read_pause(stores.new, "plain")) == Pause()
    assert sorted(await reopen(stores.old)) == sorted(shape)
    assert (await read_pause(stores.old, "plain")) == Pause()
    assert await queues(stores.old) == shape
    with pytest.raises(UsageError, match="move-store was not begun"):
        await reopen(stores.old)
    with pytest.raises(UsageError, match="another move"):
        await stores.migration().begin()


async def test_a_finished_move_is_not_repeated(stores: Stores) -> None:
    await sample_jobs.fill(stores.old)
    await stores.move()
    await stores.new.amend(JobFilter(ids=("later",)), Delete(), limit=1)
    assert (await stores.migration().survey()).is_done
    moved = await stores.move()
    assert (moved.is_verified, moved.comparison) == (True, None)
    assert await stores.new.get("later") is None


class Mortal:
    """Ends the process before or after the n-th write."""

    CHANGES = ("adopt", "hold", "save", "declare")

    def __init__(self, number: int, *, after: bool) -> None:
        self.calls = itertools.count(1)
        self.number = number
        self.after = after

    def __call__(self, inner: Any) -> Any:
        mortal = self

        class Wrapped:
            def __getattr__(self, name: str) -> Any:
                verb = getattr(inner, name)
                if name not in mortal.CHANGES:
                    return verb

                async def call(*given: Any, **named: Any) -> Any:
                    number = next(mortal.calls)
                    if number == mortal.number and not mortal.after:
                        raise Killed
                    answer = await verb(*given, **named)
                    if number == mortal.number:
                        raise Killed
                    return answer

                return call

        return Wrapped()


@pytest.mark.parametrize("after", [False, True])
async def test_a_killed_move_is_resumed(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    """Before and after every write; another run resumes from each of them."""
    monkeypatch.setattr("holdfast.ops.migrate.steps.BATCH", 7)
    await sample_jobs.fill(stores.old)
    await stores.old.save([Record(kind=SETTING_KIND, key="lease", value=b'"1m"')])
    before, shape = await dump(stores.old), await queues(stores.old)
    for number in itertools.count(1):
        stores.new = MemoryEngine(clock=stores.clock)
        await stores.new.open()
        try:
            await stores.move(Mortal(number, after=after))
        except Killed:
            assert (await stores.move()).is_verified, number
        else:
            break
        assert await dump(stores.new) == before, number
        assert await queues(stores.new) == shape, number
        assert await reopen(stores.old)
        assert await queues(stores.old) == shape, number
    assert number > 30


async def test_a_dropped_dead_queue_is_left_out(stores: Stores) -> None:
    await stores.old.declare(Queue(name="b"))
    await stores.old.declare(Queue(name="a", dead_queue="b"))
    await stores.old.drop("b")
    assert (await stores.move()).is_verified
    assert (await queues(stores.new))["a"] == Queue(name="a")


async def test_the_state_of_thousands_of_queues_fits_a_record(stores: Stores) -> None:
    queues = {
        f"tenant.of-some-length.{n}": QueueSwitches(n % 7 > 0, n % 5 > 0) for n in range(20_000)
    }
    known = SourceProgress(id="x", to="new", queues=queues)
    await source_progress(stores.old).write(known)
    assert await source_progress(stores.old).read() == known


async def test_a_survey_changes_nothing(stores: Stores) -> None:
    await sample_jobs.fill(stores.old)
    shape = await queues(stores.old)
    survey = await stores.migration().survey()
    assert survey.jobs == sum(survey.states.values()) == len(await all_of(mover_of(stores.old)))
    assert (survey.refusal, survey.resumes, survey.leased) == ("", False, ())
    assert await queues(stores.old) == shape
    assert await stores.old.load("move", limit=10) == []
