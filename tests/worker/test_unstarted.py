"""Jobs that were leased and do not start, and what the newest child says; children are doubles."""

import pytest

from holdfast.worker import calls
from holdfast.worker.wire import AskedCancel, Back, Ended, Recall, Returned, TaskInfo
from tests.worker.staging import Stage, ids_of

pytestmark = pytest.mark.usefixtures("crew_doubles")


async def test_what_does_not_start_comes_back_and_is_given_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second net: leased, given to a child, and behind calls that take for ever."""
    (link,) = await stage.start()
    (seat,) = stage.crew._seats.values()
    seat._rate = 1_000.0
    helds = stage.give("abc")
    link.run(*(call.number for call in link.calls[:2]))
    stage.crew.tick()
    assert Recall() not in link.said
    monkeypatch.setattr(calls, "UNSTARTED_S", -1.0)
    stage.crew.tick()
    assert link.said[-1] == Recall()
    seat._rate = 0.0
    link.speak(Back((helds[2].call,)))
    helds[2].came_at -= 60
    assert stage.crew.give_up_unstarted() == [helds[2]]
    assert stage.crew.give_up_unstarted() == []


async def test_a_fresh_job_is_not_given_up(stage: Stage) -> None:
    await stage.start()
    stage.give("abc")
    assert stage.crew.give_up_unstarted() == []


async def test_the_newest_child_says_which_tasks_there_are() -> None:
    stage = Stage(commands=True)
    python = next(link for link in await stage.start() if link.setup.target)
    commands = next(link for link in stage.links if not link.setup.target)
    commands.ready(TaskInfo("command"))
    python.ready(TaskInfo("work"), TaskInfo("new"))
    assert set(stage.crew.tasks) == {"command", "work", "new"}
    python.ready(TaskInfo("new"))
    assert set(stage.crew.tasks) == {"command", "new"}
    await stage.crew.stop("the test is over")


async def test_a_job_cancelled_before_it_started_does_not_start_elsewhere(stage: Stage) -> None:
    (link,) = await stage.start()
    seat = stage.crew._seats[link]
    seat._rate = 1_000.0
    helds = stage.give("abc")
    link.run(*(call.number for call in link.calls[:2]))
    helds[2].cancel_told = True
    link.speak(Back((helds[2].call,)))
    assert isinstance(stage.ears.endings["c"], AskedCancel)


async def test_how_long_no_child_could_run_python(stage: Stage) -> None:
    (link,) = await stage.start()
    stage.crew.tick()
    assert stage.crew.unready_s < 60
    link.die(1)
    stage.crew._ready_at -= 60
    stage.crew.tick()
    assert stage.crew.unready_s >= 60
    (await stage.newest(1)).ready(TaskInfo("work"))
    assert stage.crew.unready_s < 60


async def test_a_job_whose_lease_lapsed_here_waits_until_it_is_known_to_be_ours(
    stage: Stage,
) -> None:
    """The worker was frozen: somebody else may run it by now."""
    (link,) = await stage.start()
    (running, other, frozen) = stage.give("abc")
    frozen.renewed_at -= 120
    link.speak(*(Ended(call.number, (Returned(),)) for call in link.calls))
    assert len(link.calls) == 2
    frozen.renewed_at += 120
    stage.crew.tick()
    assert [given.id for given in link.calls[-1].jobs] == ["c"]
    assert {running.job.id, other.job.id} == set(stage.ears.endings)


async def test_a_withdrawn_job_is_not_given(stage: Stage) -> None:
    (link,) = await stage.start()
    helds = stage.give("abc")
    assert (stage.crew.withdraw(helds[2]), stage.crew.withdraw(helds[0])) == (True, False)
    link.speak(Ended(link.calls[0].number, (Returned(),)))
    assert ids_of(link) == ["a", "b"]
