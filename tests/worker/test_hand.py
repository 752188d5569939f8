"""What a worker has in hand: held, judged or lost, and never forgotten before its time."""

import pytest

from holdfast.core.model import Job, Lease, Note
from holdfast.core.verdict import Complete, Retry
from holdfast.worker.hand import Hand, Held


def a_lease(id: str = "a", token: int = 1, lease_ms: int = 3000) -> Lease:
    return Lease(job=Job(id=id, task="work", queue="default"), token=token, lease_ms=lease_ms)


def take(hand: Hand, *leases: Lease) -> list[Held]:
    return hand.take(leases, 100.0, lambda job: "command" if job.id == "c" else "python")


def test_a_job_is_judged_once() -> None:
    hand = Hand()
    (held,) = take(hand, a_lease())
    assert hand.unjudged == {"python": 1, "solo": 0, "command": 0, "webhook": 0}
    assert hand.judge(held, Complete())
    assert not hand.judge(held, Retry())
    assert (held.verdict, hand.unjudged_all, len(hand)) == (Complete(), 0, 1)
    hand.drop(held)
    assert (len(hand), hand.knows(held)) == (0, False)


def test_a_lost_job_gets_no_verdict() -> None:
    hand = Hand()
    (held,) = take(hand, a_lease())
    hand.lose(held)
    hand.lose(held)
    assert not hand.judge(held, Complete())
    assert (held.verdict, hand.unjudged_all, len(hand)) == (None, 0, 1)


def test_a_judged_job_that_is_lost_counts_once() -> None:
    hand = Hand()
    (held,) = take(hand, a_lease())
    hand.judge(held, Complete())
    hand.lose(held)
    assert hand.unjudged_all == 0


def test_a_job_may_come_back_while_its_first_run_ends() -> None:
    hand = Hand()
    (first,) = take(hand, a_lease(token=1))
    hand.lose(first)
    (second,) = take(hand, a_lease(token=2))
    hand.drop(first)
    assert (hand.knows(second), hand.knows(first)) == (True, False)
    assert (hand.all(), hand.unjudged_all) == ([second], 1)


def test_each_kind_is_counted() -> None:
    hand = Hand()
    take(hand, a_lease("a"), a_lease("b"), a_lease("c"))
    assert hand.unjudged == {"python": 2, "solo": 0, "command": 1, "webhook": 0}


def test_renewed_at_a_third_of_the_lease() -> None:
    (held,) = take(Hand(), a_lease(lease_ms=3000))
    assert held.renew_at() == pytest.approx(101.0)
    held.renewed_at = 105.0
    assert held.renew_at() == pytest.approx(106.0)


def test_the_last_part_of_a_lease_is_left_for_the_way_to_the_first_step() -> None:
    (short,) = take(Hand(), a_lease(lease_ms=1_000))
    (long,) = take(Hand(), a_lease(lease_ms=30_000))
    assert short.begin_before() == pytest.approx(100.9)
    assert long.begin_before() == pytest.approx(129.8)


def test_later_notes_add_to_earlier_ones() -> None:
    (held,) = take(Hand(), a_lease())
    held.add_note(Note(progress=0.5, output=b"one"))
    held.add_note(Note(checkpoint=b"1"))
    held.add_note(Note(output=b"one two", progress=0.0))
    assert held.note == Note(progress=0.0, checkpoint=b"1", output=b"one two")
