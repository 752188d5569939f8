"""Leased jobs that wait for a child: in order, batches together, the lost ones left out."""

from holdfast.core.model import Job, Lease
from holdfast.worker.clock import boot_s
from holdfast.worker.hand import Held, Kind
from holdfast.worker.lines import Lines

BATCHES = {"many": 3}


def held(id: str, task: str = "work", kind: Kind = "python") -> Held:
    job = Job(id=id, task=task, queue="default")
    return Held(Lease(job=job, token=1, lease_ms=60_000), boot_s(), kind)


def lines(*waiting: Held) -> Lines:
    made = Lines(lambda task: BATCHES.get(task, 1))
    for each in waiting:
        made.add(each)
    return made


def ids(taken: list[Held]) -> str:
    return "".join(each.job.id for each in taken)


def test_first_come_first_served_in_each_kind() -> None:
    mine = lines(held("a"), held("b", kind="command"), held("c"), held("d", kind="solo"))
    assert (len(mine), mine.waiting()) == (4, ["python", "solo", "command"])
    assert [ids(mine.take("python")) for _ in range(3)] == ["a", "c", ""]
    assert (ids(mine.take("command")), ids(mine.take("solo"))) == ("b", "d")
    assert (len(mine), mine.waiting()) == (0, [])


def test_what_is_put_back_comes_first() -> None:
    mine = lines(held("a"))
    mine.put_back(held("b"))
    assert [ids(mine.take("python")), ids(mine.take("python"))] == ["b", "a"]


def test_a_batch_goes_together_and_others_keep_their_order() -> None:
    mine = lines(*(held(id_, "many" if id_.islower() else "work") for id_ in "aBbCcd"))
    assert [ids(mine.take("python")) for _ in range(5)] == ["abc", "B", "C", "d", ""]


def test_a_batch_of_fewer_is_not_waited_for() -> None:
    mine = lines(held("a", "many"), held("b", "many"))
    assert ids(mine.take("python")) == "ab"


def test_alone_means_no_batch() -> None:
    mine = lines(held("a", "many", "solo"), held("b", "many", "solo"))
    assert [ids(mine.take("solo")) for _ in range(2)] == ["a", "b"]


def test_what_was_lost_is_left_out() -> None:
    waiting = [held(id_) for id_ in "abc"]
    mine = lines(*waiting)
    waiting[0].lost = waiting[1].lost = True
    assert [ids(mine.take("python")) for _ in range(2)] == ["c", ""]


def test_what_was_lost_is_no_part_of_a_batch() -> None:
    waiting = [held(id_, "many") for id_ in "abcd"]
    mine = lines(*waiting)
    waiting[1].lost = True
    assert "b" not in ids(mine.take("python"))


def test_a_job_can_be_taken_out() -> None:
    one, other = held("a"), held("b")
    mine = lines(one, other)
    assert (mine.remove(one), mine.remove(one)) == (True, False)
    assert ids(mine.clear()) == "b"
    assert len(mine) == 0


def test_the_latest_are_shed() -> None:
    mine = lines(*(held(id_) for id_ in "abcd"), held("x", kind="command"))
    assert ids(mine.shed("python", 2)) == "dc"
    assert ids(mine.shed("python", 2)) == ""
    assert (ids(mine.take("python")), len(mine)) == ("a", 2)


def test_alone_one_can_ask_for_a_culprit_or_for_another() -> None:
    mine = lines(*(held(id_, "bane" if id_.isupper() else "work", "solo") for id_ in "ABab"))
    mine.culprits.add("bane")
    taken = [ids(mine.take_alone(culprit=culprit)) for culprit in (False, True, False, False, True)]
    assert taken == ["a", "A", "b", "B", ""]


def test_an_innocent_can_be_asked_for() -> None:
    mine = lines(*(held(id_, "bane" if id_.isupper() else "work", "solo") for id_ in "ABa"))
    mine.judge("bane", culprit=True)
    assert [ids(mine.take_innocent()) for _ in range(2)] == ["a", ""]
    mine.judge("bane", culprit=False)
    assert ids(mine.take_innocent()) == "A"


def test_a_lost_job_takes_nobodys_turn_alone() -> None:
    waiting = [held(id_, kind="solo") for id_ in "abc"]
    mine = lines(*waiting)
    waiting[0].lost = waiting[1].lost = True
    assert [ids(mine.take_alone(culprit=False)) for _ in range(2)] == ["c", ""]


def test_a_job_whose_lease_lapsed_here_joins_no_batch() -> None:
    waiting = [held(id_, task="many") for id_ in "abc"]
    mine = lines(*waiting)
    waiting[1].renewed_at -= 120
    assert ids(mine.take("python")) == "ac"
    assert ids(mine.take("python")) == ""
    waiting[1].renewed_at += 120
    assert ids(mine.take("python")) == "b"
