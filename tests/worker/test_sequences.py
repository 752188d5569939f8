"""Members of a group that came together: who may start, and who goes back."""

import pytest
from msgspec.structs import replace

from holdfast.core.model import Job, Lease
from holdfast.core.verdict import Bury, Complete, Forward, Release, Retry, Verdict
from holdfast.worker.clock import boot_s
from holdfast.worker.hand import Held, Kind
from holdfast.worker.sequences import Sequences, Step, by_group

NOW = 1_000_000


def held(
    id: str,
    group: str | None = "g",
    kind: Kind = "python",
    expires_at: int | None = None,
    queue: str = "q",
) -> Held:
    job = Job(id=id, task="work", queue=queue, group=group, expires_at=expires_at)
    return Held(Lease(job=job, token=1, lease_ms=60_000), boot_s(), kind)


def ids(taken: list[Held] | tuple[Held, ...]) -> str:
    return "".join(each.job.id for each in taken)


def over(mine: Sequences, held: Held, verdict: Verdict | None = None) -> tuple[str, str]:
    """Who may start then, and who goes back."""
    held.verdict = verdict
    step = mine.over(held, NOW)
    return ("" if step.start is None else step.start.job.id), ids(step.release)


def test_the_first_of_each_group_may_start_and_all_others() -> None:
    taken = [
        held(id_, group)
        for id_, group in zip("abcdef", ["g", None, "h", "g", None, "h"], strict=True)
    ]
    mine = Sequences()
    assert ids(mine.take(taken)) == "abce"
    assert [each.job.id for each in taken if mine.is_behind(each)] == ["d", "f"]


def test_jobs_without_a_group_cost_nothing() -> None:
    mine = Sequences()
    taken = [held(id_, None) for id_ in "abc"]
    assert mine.take(taken) is taken
    assert not mine


def test_groups_of_the_same_name_in_two_queues_are_two() -> None:
    mine = Sequences()
    assert ids(mine.take([held("a"), held("b", queue="other")])) == "ab"
    assert not mine


@pytest.mark.parametrize("verdict", [Complete(), Bury(), Forward("other")])
def test_they_follow_one_another(verdict: Verdict) -> None:
    mine = Sequences()
    taken = [held(id_) for id_ in "abc"]
    mine.take(taken)
    assert over(mine, taken[0], verdict) == ("b", "")
    assert over(mine, taken[1], verdict) == ("c", "")
    assert not mine
    assert over(mine, taken[2], verdict) == ("", "")


@pytest.mark.parametrize("verdict", [Retry(), Retry(5), Release("snoozed", 5)])
def test_behind_one_that_comes_again_all_go_back(verdict: Verdict) -> None:
    mine = Sequences()
    taken = [held(id_) for id_ in "abcd"]
    mine.take(taken)
    assert over(mine, taken[0], Complete()) == ("b", "")
    assert over(mine, taken[1], verdict) == ("", "cd")
    assert not mine


def test_a_settle_that_came_too_late_lets_nobody_start() -> None:
    mine = Sequences()
    taken = [held(id_) for id_ in "abc"]
    mine.take(taken)
    taken[0].lost = True
    assert over(mine, taken[0], Complete()) == ("", "bc")


def test_one_that_was_stopped_on_request_leaves_the_way() -> None:
    mine = Sequences()
    taken = [held(id_) for id_ in "ab"]
    mine.take(taken)
    cancelled(taken[0])
    assert over(mine, taken[0], Retry()) == ("b", "")


def test_one_that_is_lost_while_it_waits_sends_back_those_behind_it() -> None:
    mine = Sequences()
    taken = [held(id_) for id_ in "abcd"]
    mine.take(taken)
    taken[2].lost = True
    assert over(mine, taken[2]) == ("", "d")
    assert over(mine, taken[0], Complete()) == ("b", "")
    assert not mine


def cancelled(each: Held) -> None:
    asked = replace(each.job, cancel_requested=True)
    each.lease = Lease(job=asked, token=1, lease_ms=60_000)
    each.verdict = Retry()


def test_one_that_is_cancelled_while_it_waits_is_passed_over() -> None:
    mine = Sequences()
    taken = [held(id_) for id_ in "abc"]
    mine.take(taken)
    cancelled(taken[1])
    assert over(mine, taken[1], Retry()) == ("", "")
    assert over(mine, taken[0], Complete()) == ("c", "")


def test_one_that_is_being_cancelled_is_waited_for() -> None:
    mine = Sequences()
    taken = [held(id_) for id_ in "abc"]
    mine.take(taken)
    cancelled(taken[1])
    assert over(mine, taken[0], Complete()) == ("", "")
    assert over(mine, taken[1], Retry()) == ("c", "")


def test_one_that_expired_meanwhile_does_not_start_and_none_passes_it() -> None:
    mine = Sequences()
    taken = [held("a"), held("b", expires_at=NOW), held("c")]
    mine.take(taken)
    assert over(mine, taken[0], Complete()) == ("", "bc")
    assert not mine


def test_those_that_wait_need_no_room_but_for_one() -> None:
    mine = Sequences()
    kinds: list[Kind] = ["python", "python", "command", "python"]
    taken = [held(id_, kind=kind) for id_, kind in zip("abcd", kinds, strict=True)]
    mine.take(taken)
    assert [mine.idle(kind) for kind in ("python", "command", "solo")] == [2, 1, 0]
    # The next one needs the slot that this one had, though the store has not answered yet.
    taken[0].verdict = Complete()
    assert (mine.idle("python"), mine.idle("command")) == (1, 1)


def test_at_the_end_all_that_wait_are_given_up() -> None:
    mine = Sequences()
    taken = [held(id_, group) for id_, group in zip("abcd", "gghh", strict=True)]
    mine.take(taken)
    assert ids(mine.clear()) == "bd"
    assert mine.over(taken[0], NOW) == Step()


def test_groups_keep_their_order_and_the_others_their_place() -> None:
    jobs = [
        held(id_, group).job for id_, group in zip("abcde", ["g", None, "g", "h", "g"], strict=True)
    ]
    lines = by_group(jobs, lambda job: job)
    assert ["".join(job.id for job in line) for line in lines] == ["ace", "b", "d"]
