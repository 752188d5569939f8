"""The leases of a worker: active, decided or lost, and dropped only when they are over."""

import pytest

from holdfast.core.model import Job, Lease, Note
from holdfast.core.verdict import Complete, Retry
from holdfast.worker.supervisor.held_leases import HeldLease, HeldLeases


def a_lease(id: str = "a", token: int = 1, lease_ms: int = 3000) -> Lease:
    return Lease(job=Job(id=id, task="work", queue="default"), token=token, lease_ms=lease_ms)


def hold(leases: HeldLeases, *added: Lease) -> list[HeldLease]:
    held = [HeldLease(each, 100.0, "command" if each.id == "c" else "python") for each in added]
    leases.add(held)
    return held


def test_the_first_verdict_stands() -> None:
    leases = HeldLeases()
    (held,) = hold(leases, a_lease())
    assert leases.active == {"python": 1, "solo": 0, "command": 0, "webhook": 0}
    assert leases.decide(held, Complete())
    assert not leases.decide(held, Retry())
    assert (held.verdict, leases.active_count, len(leases)) == (Complete(), 0, 1)
    leases.drop(held)
    assert (len(leases), held in leases) == (0, False)


def test_a_lost_job_gets_no_verdict() -> None:
    leases = HeldLeases()
    (held,) = hold(leases, a_lease())
    leases.lose(held)
    leases.lose(held)
    assert not leases.decide(held, Complete())
    assert (held.verdict, leases.active_count, len(leases)) == (None, 0, 1)


def test_a_decided_job_that_is_lost_counts_once() -> None:
    leases = HeldLeases()
    (held,) = hold(leases, a_lease())
    leases.decide(held, Complete())
    leases.lose(held)
    assert leases.active_count == 0


def test_a_job_may_come_back_while_its_first_run_ends() -> None:
    leases = HeldLeases()
    (first,) = hold(leases, a_lease(token=1))
    leases.lose(first)
    (second,) = hold(leases, a_lease(token=2))
    leases.drop(first)
    assert (second in leases, first in leases) == (True, False)
    assert (leases.all(), leases.active_count) == ([second], 1)


def test_each_kind_is_counted() -> None:
    leases = HeldLeases()
    hold(leases, a_lease("a"), a_lease("b"), a_lease("c"))
    assert leases.active == {"python": 2, "solo": 0, "command": 1, "webhook": 0}


def test_renewed_at_a_third_of_the_lease() -> None:
    (held,) = hold(HeldLeases(), a_lease(lease_ms=3000))
    assert held.renew_at() == pytest.approx(101.0)
    held.renewed_at = 105.0
    assert held.renew_at() == pytest.approx(106.0)


def test_the_last_part_of_a_lease_is_a_margin_for_the_start() -> None:
    (short,) = hold(HeldLeases(), a_lease(lease_ms=1_000))
    (long,) = hold(HeldLeases(), a_lease(lease_ms=30_000))
    assert short.begin_before == pytest.approx(100.9)
    assert long.begin_before == pytest.approx(129.8)


def test_later_notes_add_to_earlier_ones() -> None:
    (held,) = hold(HeldLeases(), a_lease())
    held.add_note(Note(progress=0.5, output=b"one"))
    held.add_note(Note(checkpoint=b"1"))
    held.add_note(Note(output=b"one two", progress=0.0))
    assert held.note == Note(progress=0.0, checkpoint=b"1", output=b"one two")
