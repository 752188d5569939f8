"""Members of a group leased together: which may start, and which are released."""

import pytest
from msgspec.structs import replace

from holdfast.core.model import Job, Lease
from holdfast.core.verdict import Bury, Complete, Forward, Release, Retry, Verdict
from holdfast.process import boot_s
from holdfast.worker.supervisor.held_leases import (
    GroupOrder,
    GroupStep,
    HeldLease,
    RunnerKind,
    by_group,
)

NOW = 1_000_000


def held(
    id: str,
    group: str | None = "g",
    kind: RunnerKind = "python",
    expires_at: int | None = None,
    queue: str = "q",
) -> HeldLease:
    job = Job(id=id, task="work", queue=queue, group=group, expires_at=expires_at)
    return HeldLease(Lease(job=job, token=1, lease_ms=60_000), boot_s(), kind)


def ids(taken: list[HeldLease] | tuple[HeldLease, ...]) -> str:
    return "".join(each.job.id for each in taken)


def over(mine: GroupOrder, held: HeldLease, verdict: Verdict | None = None) -> tuple[str, str]:
    """The members that then start and are released."""
    held.verdict = verdict
    step = mine.settled(held, NOW)
    return ("" if step.start is None else step.start.job.id), ids(step.release)


def test_the_first_of_each_group_may_start_and_all_others() -> None:
    taken = [
        held(id_, group)
        for id_, group in zip("abcdef", ["g", None, "h", "g", None, "h"], strict=True)
    ]
    mine = GroupOrder()
    assert ids(mine.add(taken)) == "abce"
    assert [each.job.id for each in taken if mine.is_behind(each)] == ["d", "f"]


def test_jobs_without_a_group_cost_nothing() -> None:
    mine = GroupOrder()
    taken = [held(id_, None) for id_ in "abc"]
    assert mine.add(taken) is taken
    assert not mine


def test_groups_of_the_same_name_in_two_queues_are_two() -> None:
    mine = GroupOrder()
    assert ids(mine.add([held("a"), held("b", queue="other")])) == "ab"
    assert not mine


@pytest.mark.parametrize("verdict", [Complete(), Bury(), Forward("other")])
def test_members_start_one_after_the_other(verdict: Verdict) -> None:
    mine = GroupOrder()
    taken = [held(id_) for id_ in "abc"]
    mine.add(taken)
    assert over(mine, taken[0], verdict) == ("b", "")
    assert over(mine, taken[1], verdict) == ("c", "")
    assert not mine
    assert over(mine, taken[2], verdict) == ("", "")


@pytest.mark.parametrize("verdict", [Retry(), Retry(5), Release("snoozed", 5)])
def test_members_behind_a_retried_job_are_released(verdict: Verdict) -> None:
    mine = GroupOrder()
    taken = [held(id_) for id_ in "abcd"]
    mine.add(taken)
    assert over(mine, taken[0], Complete()) == ("b", "")
    assert over(mine, taken[1], verdict) == ("", "cd")
    assert not mine


def test_a_late_settle_starts_no_member() -> None:
    mine = GroupOrder()
    taken = [held(id_) for id_ in "abc"]
    mine.add(taken)
    taken[0].lost = True
    assert over(mine, taken[0], Complete()) == ("", "bc")


def test_a_cancelled_job_lets_the_next_start() -> None:
    mine = GroupOrder()
    taken = [held(id_) for id_ in "ab"]
    mine.add(taken)
    cancelled(taken[0])
    assert over(mine, taken[0], Retry()) == ("b", "")


def test_a_waiting_job_that_is_lost_releases_those_behind_it() -> None:
    mine = GroupOrder()
    taken = [held(id_) for id_ in "abcd"]
    mine.add(taken)
    taken[2].lost = True
    assert over(mine, taken[2]) == ("", "d")
    assert over(mine, taken[0], Complete()) == ("b", "")
    assert not mine


def cancelled(each: HeldLease) -> None:
    asked = replace(each.job, cancel_requested=True)
    each.lease = Lease(job=asked, token=1, lease_ms=60_000)
    each.verdict = Retry()


def test_a_waiting_job_that_is_cancelled_is_skipped() -> None:
    mine = GroupOrder()
    taken = [held(id_) for id_ in "abc"]
    mine.add(taken)
    cancelled(taken[1])
    assert over(mine, taken[1], Retry()) == ("", "")
    assert over(mine, taken[0], Complete()) == ("c", "")


def test_members_wait_for_a_job_that_is_being_cancelled() -> None:
    mine = GroupOrder()
    taken = [held(id_) for id_ in "abc"]
    mine.add(taken)
    cancelled(taken[1])
    assert over(mine, taken[0], Complete()) == ("", "")
    assert over(mine, taken[1], Retry()) == ("c", "")


def test_an_expired_member_does_not_start_and_blocks_those_behind_it() -> None:
    mine = GroupOrder()
    taken = [held("a"), held("b", expires_at=NOW), held("c")]
    mine.add(taken)
    assert over(mine, taken[0], Complete()) == ("", "bc")
    assert not mine


def test_waiting_members_need_one_slot_together() -> None:
    mine = GroupOrder()
    kinds: list[RunnerKind] = ["python", "python", "command", "python"]
    taken = [held(id_, kind=kind) for id_, kind in zip("abcd", kinds, strict=True)]
    mine.add(taken)
    assert [mine.waiting(kind) for kind in ("python", "command", "solo")] == [2, 1, 0]
    # The next one needs the slot that this one had, though the store has not answered yet.
    taken[0].verdict = Complete()
    assert (mine.waiting("python"), mine.waiting("command")) == (1, 1)


def test_at_the_end_all_waiting_members_are_returned() -> None:
    mine = GroupOrder()
    taken = [held(id_, group) for id_, group in zip("abcd", "gghh", strict=True)]
    mine.add(taken)
    assert ids(mine.clear()) == "bd"
    assert mine.settled(taken[0], NOW) == GroupStep()


def test_groups_keep_their_order_and_the_others_their_place() -> None:
    jobs = [
        held(id_, group).job for id_, group in zip("abcde", ["g", None, "g", "h", "g"], strict=True)
    ]
    lines = by_group(jobs, lambda job: job)
    assert ["".join(job.id for job in line) for line in lines] == ["ace", "b", "d"]
