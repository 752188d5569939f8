"""A whole store moves to another: nothing is lost or changed, whoever is killed on the way."""

import itertools
from typing import Any

import pytest

from holdfast.config import KIND as SETTING_KIND
from holdfast.core.model import JobFilter, NewJob, Queue, Record
from holdfast.core.pauses import Pause
from holdfast.core.verdict import Delete
from holdfast.core.workers import KIND as WORKER_KIND
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import UsageError
from holdfast.explaining import load_pause, save_pause
from holdfast.moving import reopen
from holdfast.moving.records import Leaving, Opening, leaving
from holdfast.upkeep import Schedule, Schedules
from tests.killed import Killed
from tests.moving import mixture
from tests.moving.mixture import all_of, mover_of
from tests.moving.stores import Stores, dump, queues


async def test_everything_moves(stores: Stores) -> None:
    await mixture.fill(stores.old)
    before, shape = await dump(stores.old), await queues(stores.old)
    schedules = Schedules(stores.old, stores.clock.wall_ms)
    await schedules.add(Schedule(name="nightly", every_ms=1000, job=NewJob(id="n", task="t")))
    words = [
        Record(kind=SETTING_KIND, key="lease", value=b'"1m"'),
        Record(kind=WORKER_KIND, key="w", value=b"{}"),
    ]
    await stores.old.save(words)
    await save_pause(stores.old, "shut", Pause(by="me", text="as it was"))
    moved = await stores.move()
    assert moved.is_verified
    assert moved.comparison is not None
    assert moved.comparison.wrong == []
    assert await dump(stores.new) == before
    assert await dump(stores.old) == before
    assert await queues(stores.new) == shape
    assert moved.records == {"schedule": 1, "setting": 1, "pause": 1, "distribution": 0}
    assert await Schedules(stores.new, stores.clock.wall_ms).all() == await schedules.all()
    assert (await load_pause(stores.new, "shut")).by == "me"
    assert await stores.new.load(WORKER_KIND, limit=10) == []
    for state, found in moved.comparison.source.items():
        assert found == moved.comparison.target[state]


async def test_the_old_store_is_closed_and_can_be_opened_again(stores: Stores) -> None:
    await mixture.fill(stores.old)
    shape = await queues(stores.old)
    await stores.move()
    assert all(each.paused and not each.accepting for each in (await queues(stores.old)).values())
    assert (await load_pause(stores.old, "plain")).text == "everything is moved to new"
    assert (await load_pause(stores.new, "plain")) == Pause()
    assert sorted(await reopen(stores.old)) == sorted(shape)
    assert (await load_pause(stores.old, "plain")) == Pause()
    assert await queues(stores.old) == shape
    with pytest.raises(UsageError, match="no move"):
        await reopen(stores.old)
    with pytest.raises(UsageError, match="another move"):
        await stores.migration().begin()


async def test_a_move_that_is_done_is_not_done_again(stores: Stores) -> None:
    await mixture.fill(stores.old)
    await stores.move()
    await stores.new.amend(JobFilter(ids=("later",)), Delete(), limit=1)
    assert (await stores.migration().survey()).is_done
    moved = await stores.move()
    assert (moved.is_verified, moved.comparison) == (True, None)
    assert await stores.new.get("later") is None


class Mortal:
    """Dies before or after the call with this number that changes something."""

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
async def test_whoever_is_killed_is_taken_up(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    """At every single change, before it and after it; from any of them another run goes on."""
    monkeypatch.setattr("holdfast.moving.copying.BATCH", 7)
    await mixture.fill(stores.old)
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


async def test_a_dead_queue_that_is_gone_counts_as_none(stores: Stores) -> None:
    await stores.old.declare(Queue(name="b"))
    await stores.old.declare(Queue(name="a", dead_queue="b"))
    await stores.old.drop("b")
    assert (await stores.move()).is_verified
    assert (await queues(stores.new))["a"] == Queue(name="a")


async def test_how_many_thousand_queues_were_can_be_written_down(stores: Stores) -> None:
    queues = {f"tenant.of-some-length.{n}": Opening(n % 7 > 0, n % 5 > 0) for n in range(20_000)}
    known = Leaving(id="x", to="new", queues=queues)
    await leaving(stores.old).write(known)
    assert await leaving(stores.old).read() == known


async def test_a_survey_changes_nothing(stores: Stores) -> None:
    await mixture.fill(stores.old)
    shape = await queues(stores.old)
    survey = await stores.migration().survey()
    assert survey.jobs == sum(survey.states.values()) == len(await all_of(mover_of(stores.old)))
    assert (survey.refusal, survey.resumes, survey.leased) == ("", False, ())
    assert await queues(stores.old) == shape
    assert await stores.old.load("move", limit=10) == []
