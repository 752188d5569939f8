"""The queue of leased jobs: in order, batches together, without lost jobs."""

from holdfast.core.model import Job, Lease
from holdfast.process import boot_s
from holdfast.worker.supervisor.dispatch import DispatchQueue
from holdfast.worker.supervisor.held_leases import HeldLease, RunnerKind

BATCHES = {"many": 3}


def held(id: str, task: str = "work", kind: RunnerKind = "python") -> HeldLease:
    job = Job(id=id, task=task, queue="default")
    return HeldLease(Lease(job=job, token=1, lease_ms=60_000), boot_s(), kind)


def queue_of(*waiting: HeldLease) -> DispatchQueue:
    made = DispatchQueue(BATCHES)
    made.add(waiting)
    return made


def take(queue: DispatchQueue, kind: RunnerKind) -> str:
    """The jobs of the next call."""
    return "".join(ids(call) for call in queue.take(kind, 1))


def ids(taken: list[HeldLease] | HeldLease | None) -> str:
    jobs = [taken] if isinstance(taken, HeldLease) else taken or []
    return "".join(each.job.id for each in jobs)


def test_first_come_first_served_in_each_kind() -> None:
    mine = queue_of(held("a"), held("b", kind="command"), held("c"), held("d", kind="solo"))
    assert (len(mine), mine.waiting_kinds()) == (4, ["python", "solo", "command"])
    assert [take(mine, "python") for _ in range(3)] == ["a", "c", ""]
    assert (take(mine, "command"), take(mine, "solo")) == ("b", "d")
    assert (len(mine), mine.waiting_kinds()) == (0, [])


def test_a_job_put_back_comes_first() -> None:
    mine = queue_of(held("a"))
    mine.put_back(held("b"))
    assert [take(mine, "python"), take(mine, "python")] == ["b", "a"]


def test_a_batch_goes_together_and_others_keep_their_order() -> None:
    mine = queue_of(*(held(id_, "many" if id_.islower() else "work") for id_ in "aBbCcd"))
    assert [take(mine, "python") for _ in range(5)] == ["abc", "B", "C", "d", ""]


def test_a_batch_of_fewer_is_not_waited_for() -> None:
    mine = queue_of(held("a", "many"), held("b", "many"))
    assert take(mine, "python") == "ab"


def test_alone_means_no_batch() -> None:
    mine = queue_of(held("a", "many", "solo"), held("b", "many", "solo"))
    assert [take(mine, "solo") for _ in range(2)] == ["a", "b"]


def test_lost_jobs_are_skipped() -> None:
    waiting = [held(id_) for id_ in "abc"]
    mine = queue_of(*waiting)
    waiting[0].lost = waiting[1].lost = True
    assert [take(mine, "python") for _ in range(2)] == ["c", ""]


def test_lost_jobs_are_in_no_batch() -> None:
    waiting = [held(id_, "many") for id_ in "abcd"]
    mine = queue_of(*waiting)
    waiting[1].lost = True
    assert "b" not in take(mine, "python")


def test_a_job_can_be_taken_out() -> None:
    one, other = held("a"), held("b")
    mine = queue_of(one, other)
    assert (mine.remove(one), mine.remove(one)) == (True, False)
    assert ids(mine.clear()) == "b"
    assert len(mine) == 0


def test_the_latest_are_removed_first() -> None:
    mine = queue_of(*(held(id_) for id_ in "abcd"), held("x", kind="command"))
    assert ids(mine.remove_excess("python", 2)) == "dc"
    assert ids(mine.remove_excess("python", 2)) == ""
    assert (take(mine, "python"), len(mine)) == ("a", 2)


def test_a_job_to_run_alone_may_be_a_culprits_or_another() -> None:
    mine = queue_of(*(held(id_, "bane" if id_.isupper() else "work", "solo") for id_ in "ABab"))
    mine.culprits.add("bane")
    taken = [ids(mine.take_alone(culprit=culprit)) for culprit in (False, True, False, False, True)]
    assert taken == ["a", "A", "b", "B", ""]


def test_an_innocent_job_can_be_taken() -> None:
    mine = queue_of(*(held(id_, "bane" if id_.isupper() else "work", "solo") for id_ in "ABa"))
    mine.record_alone("bane", culprit=True)
    assert [ids(mine.take_innocent()) for _ in range(2)] == ["a", ""]
    mine.record_alone("bane", culprit=False)
    assert ids(mine.take_innocent()) == "A"


def test_a_lost_job_is_not_taken_to_run_alone() -> None:
    waiting = [held(id_, kind="solo") for id_ in "abc"]
    mine = queue_of(*waiting)
    waiting[0].lost = waiting[1].lost = True
    assert [ids(mine.take_alone(culprit=False)) for _ in range(2)] == ["c", ""]


def test_a_job_whose_lease_lapsed_here_joins_no_batch() -> None:
    waiting = [held(id_, task="many") for id_ in "abc"]
    mine = queue_of(*waiting)
    waiting[1].begin_before -= 120
    assert take(mine, "python") == "ac"
    assert take(mine, "python") == ""
    waiting[1].begin_before += 120
    assert take(mine, "python") == "b"
