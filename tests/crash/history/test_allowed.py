"""The checker accepts every history that crashes, lost replies and operators can cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.conformance.history import asked
from holdfast.core.limits import Limit, Rate
from holdfast.core.model import Queue
from tests.crash.history.builder import LEASE_MS, HistoryBuilder


def lost_reply_of_an_enqueue(builder: HistoryBuilder) -> None:
    builder.enqueue(answer="info")


def repeated_enqueue(builder: HistoryBuilder) -> None:
    builder.enqueue(answer="none")
    builder.enqueue(status="duplicate")
    builder.lease(1)
    builder.finish(1)


def late_settle_that_wins(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.rest(LEASE_MS)
    builder.overdue(1)
    builder.settle(1, "retry", failure="overdue")
    builder.settle(1, "complete")
    builder.finish(1)


def lease_whose_answer_was_lost(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.call("lease", queues=("q",), answer="info")
    builder.rest(LEASE_MS)
    builder.overdue(7)
    builder.settle(7, "retry", failure="overdue")
    builder.lease(8, attempt=2)
    builder.finish(8, attempt=2)


def release_gives_the_attempt_back(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.settle(1, "release")
    builder.lease(2)
    builder.finish(2)


def redriven(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.settle(1, "bury", reason="explicit")
    builder.amend("redrive")
    builder.lease(2)
    builder.finish(2)


def moved_to_the_dead_queue(builder: HistoryBuilder) -> None:
    builder.enqueue(queue="moved")
    builder.lease(1, queue="moved")
    builder.settle(1, "bury", reason="explicit", queue="moved")
    builder.lease(2, queue="grave", dead=True)
    builder.settle(2, "retry", queue="grave", dead=True)
    builder.lease(3, queue="grave", dead=True)
    builder.settle(3, "bury", reason="rejected", queue="grave", dead=True)
    builder.keep("dead", queue="grave", reason="explicit")


def handled_as_a_dead_letter(builder: HistoryBuilder) -> None:
    builder.enqueue(queue="moved")
    builder.lease(1, queue="moved")
    builder.settle(1, "bury", reason="explicit", queue="moved")
    builder.lease(2, queue="grave", dead=True)
    builder.settle(2, "complete", queue="grave", dead=True)


def forwarded_as_a_dead_letter(builder: HistoryBuilder) -> None:
    builder.enqueue(queue="moved", expires_ms=500)
    builder.lease(1, queue="moved")
    builder.settle(1, "bury", reason="explicit", queue="moved")
    builder.lease(2, queue="grave", dead=True)
    builder.settle(2, "forward", queue="grave", target="q", dead=True)
    builder.rest(1_000)
    builder.lease(3)
    builder.finish(3)


def deleted(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.amend("delete")


def enqueued_again_after_its_deletion(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.settle(1, "complete")
    builder.amend("delete")
    builder.enqueue(answer="none")
    builder.lease(2)
    builder.finish(2)


def two_at_once_under_one_key(builder: HistoryBuilder) -> None:
    """Asked for first and carried out last: the other one had let go of the key by then."""
    answer = builder.enqueue_slowly("b", key="k", key_window_ms=60_000)
    builder.enqueue("a", key="k", key_window_ms=0)
    builder.lease(1)
    builder.settle(1, "complete")
    answer()
    builder.lease(2, id_="b")
    builder.settle(2, "complete", id="b")
    builder.keep(created_at=1_000)
    builder.keep(id_="b", created_at=1_600)


def replaced_with_other_overrides(builder: HistoryBuilder) -> None:
    builder.enqueue("a", key="k", key_window_ms=0, max_attempts=9)
    builder.enqueue("b", "duplicate", key="k", key_policy="replace", max_attempts=1, holder="a")
    builder.lease(1, digest="payload of b")
    builder.settle(1, "bury", reason="attempts", failure="error")
    builder.keep("dead", reason="attempts", digest="payload of b")


def wall_clock_set_forward(builder: HistoryBuilder) -> None:
    builder.enqueue(delay_ms=60_000, expires_ms=90_000)
    builder.note("jump")
    builder.lease(1)
    builder.finish(1)


def rate_kept(builder: HistoryBuilder) -> None:
    for _ in range(5):
        builder.note("rate", name="api", limit=2, per_ms=150)


def limits_kept(builder: HistoryBuilder) -> None:
    builder.declare(
        limits=(
            Limit(name="l", key="{tenant}", concurrency=1),
            Limit(name="m", key="{region}", concurrency=1),
            Limit(name="r", rate=Rate(count=2, per_ms=1_000, burst=2)),
        )
    )
    for token, id_ in enumerate("ab", 1):
        builder.enqueue(id_, tenant=id_)
        builder.lease(token, id_=id_, tenant=id_, task="work")
    for token, id_ in enumerate("ab", 1):
        builder.finish(token, id_)
    builder.enqueue("c", tenant="a")
    builder.work("c", 3, tenant="a", task="work")


def slot_of_a_lapsed_lease(builder: HistoryBuilder) -> None:
    builder.declare(limits=(Limit(name="l", concurrency=1),))
    builder.enqueue("a")
    builder.enqueue("b")
    builder.lease(1, task="work")
    builder.rest(LEASE_MS)
    builder.settle(1, "retry", failure="overdue")
    builder.lease(2, id_="b", task="work")
    builder.finish(1)
    builder.finish(2, "b")


def batch_of_a_group(builder: HistoryBuilder) -> None:
    builder.declare(group_batch=2)
    for id_ in "ab":
        builder.enqueue(id_, group="g")
    builder.lease_many("ab", 1, group="g")
    for id_ in "ba":
        builder.finish(1, id_)


def head_of_a_group_taken_away(builder: HistoryBuilder) -> None:
    builder.enqueue("a", group="g")
    builder.enqueue("b", group="g")
    builder.amend("cancel")
    builder.work("b", 1, group="g")
    builder.keep("cancelled")


def family_in_order(builder: HistoryBuilder) -> None:
    builder.enqueue("p")
    builder.enqueue("a", after=("p",), after_on="death", parent_death="cancel")
    builder.enqueue("b", after=("a",), after_on="success", parent_death="run")
    builder.enqueue("c", after=("p",), after_on="success", parent_death="cancel", group="g")
    builder.enqueue("d", group="g")
    builder.work("p", 1)
    builder.keep("cancelled", reason="dependency")
    builder.work("b", 2)
    builder.work("c", 3, group="g")
    builder.work("d", 4, group="g")


def key_of_an_orphan(builder: HistoryBuilder) -> None:
    builder.enqueue("p")
    builder.enqueue("a", after=("p",), after_on="death", key="k", key_window_ms=0)
    builder.work("p", 1)
    builder.enqueue("b", key="k", key_window_ms=0)
    builder.work("b", 2)
    builder.keep("cancelled", reason="dependency")


def limit_lowered_under_its_leases(builder: HistoryBuilder) -> None:
    builder.declare(limits=(Limit(name="l", concurrency=2),))
    for token, id_ in enumerate("ab", 1):
        builder.enqueue(id_)
        builder.lease(token, id_=id_, task="work")
    builder.declare(limits=(Limit(name="l", concurrency=1),))
    for token, id_ in enumerate("ab", 1):
        builder.finish(token, id_)
    builder.enqueue("c")
    builder.work("c", 3, task="work")


def limit_raised_by_somebody_who_was_killed(builder: HistoryBuilder) -> None:
    builder.declare(limits=(Limit(name="l", concurrency=1),))
    raised = asked("declare", Queue(name="q", limits=(Limit(name="l", concurrency=2),)))
    builder.call("declare", facts=raised["facts"], answer="none")
    for token, id_ in enumerate("ab", 1):
        builder.enqueue(id_)
        builder.lease(token, id_=id_, task="work")
    for token, id_ in enumerate("ab", 1):
        builder.finish(token, id_)


def limit_that_counts_by_another_key_now(builder: HistoryBuilder) -> None:
    for token, (id_, key) in enumerate((("a", ""), ("b", "{tenant}")), 1):
        builder.declare(limits=(Limit(name="l", key=key, concurrency=1),))
        builder.enqueue(id_, tenant="t")
        builder.lease(token, id_=id_, tenant="t", task="work")
    for token, id_ in enumerate("ab", 1):
        builder.finish(token, id_)


def rate_changed_within_its_window(builder: HistoryBuilder) -> None:
    for token, id_ in enumerate("ab", 1):
        builder.declare(limits=(Limit(name="l", rate=Rate(count=token, per_ms=1_000)),))
        builder.enqueue(id_)
        builder.work(id_, token, task="work")


def other_lane_first(builder: HistoryBuilder) -> None:
    builder.declare("lanes", limits=(Limit(name="l", key="{tenant}", concurrency=1),))
    for id_ in "ab":
        builder.enqueue(id_, queue="lanes", tenant=id_)
    for token, id_ in enumerate("ba", 1):
        builder.work(id_, token, queue="lanes", tenant=id_, task="work")


def higher_priority_first_for_a_while(builder: HistoryBuilder) -> None:
    builder.declare("aging", aging_ms=1_000)
    builder.enqueue("a", queue="aging", priority=0)
    builder.rest(3_000)
    builder.enqueue("b", queue="aging", priority=4)
    builder.work("b", 1, queue="aging", priority=4)
    builder.work("a", 2, queue="aging", priority=0)


def key_of_a_job_that_arrived_late(builder: HistoryBuilder) -> None:
    """The call was lost, its repeat met the holder, and a third copy came when that was gone."""
    builder.enqueue("b", key="k", key_window_ms=0)
    builder.enqueue("a", key="k", key_window_ms=0, answer="info")
    builder.enqueue("a", "duplicate", holder="b", key="k", key_window_ms=0)
    builder.work("b", 1)
    builder.enqueue("a", key="k", key_window_ms=0, answer="none")
    builder.work("a", 2)


def key_taken_after_its_window(builder: HistoryBuilder) -> None:
    builder.enqueue("a", key="k", key_window_ms=0)
    builder.enqueue("b", key="k", key_window_ms=0, key_hold="window")
    builder.work("a", 1)
    builder.work("b", 2)


def key_taken_by_a_job_of_unknown_fate(builder: HistoryBuilder) -> None:
    """It took the key, was done and deleted; only the last caller got an answer."""
    builder.enqueue("a", key="k", key_window_ms=0)
    builder.enqueue("b", key="k", key_window_ms=0, key_hold="window", answer="none")
    builder.enqueue("c", key="k", key_window_ms=0)
    builder.work("a", 1)
    builder.work("c", 2)


def skipped_while_a_child_was_enqueued(builder: HistoryBuilder) -> None:
    builder.enqueue("a")
    builder.enqueue("b")
    answer = builder.enqueue_slowly("c", after=("a",), after_on="success", parent_death="cancel")
    builder.lease(1, id_="b")
    answer()
    builder.work("a", 2)
    builder.finish(1, "b")
    builder.work("c", 3)


def skipped_while_an_abandoned_call_added_a_child(builder: HistoryBuilder) -> None:
    builder.enqueue("a")
    builder.enqueue("b")
    builder.enqueue("c", after=("a",), after_on="success", answer="info")
    builder.work("b", 1)
    builder.work("a", 2)


def skipped_while_a_late_settle_lost(builder: HistoryBuilder) -> None:
    builder.enqueue("a")
    builder.lease(1)
    builder.rest(LEASE_MS)
    builder.settle(1, "retry", failure="overdue")
    builder.lease(2, attempt=2)
    builder.settle(2, "release", attempt=2)
    builder.enqueue("b")
    answer = builder.settle_slowly(1, "retry", "lost")
    builder.lease(3, id_="b")
    answer()
    builder.lease(4, attempt=2)
    builder.finish(4, attempt=2)
    builder.finish(3, "b")


ALLOWED = [
    lost_reply_of_an_enqueue,
    repeated_enqueue,
    late_settle_that_wins,
    lease_whose_answer_was_lost,
    release_gives_the_attempt_back,
    redriven,
    moved_to_the_dead_queue,
    handled_as_a_dead_letter,
    forwarded_as_a_dead_letter,
    deleted,
    enqueued_again_after_its_deletion,
    two_at_once_under_one_key,
    replaced_with_other_overrides,
    wall_clock_set_forward,
    rate_kept,
    limits_kept,
    slot_of_a_lapsed_lease,
    batch_of_a_group,
    head_of_a_group_taken_away,
    family_in_order,
    key_of_an_orphan,
    limit_lowered_under_its_leases,
    limit_raised_by_somebody_who_was_killed,
    limit_that_counts_by_another_key_now,
    rate_changed_within_its_window,
    other_lane_first,
    higher_priority_first_for_a_while,
    key_of_a_job_that_arrived_late,
    key_taken_after_its_window,
    key_taken_by_a_job_of_unknown_fate,
    skipped_while_a_child_was_enqueued,
    skipped_while_an_abandoned_call_added_a_child,
    skipped_while_a_late_settle_lost,
]


@pytest.mark.parametrize("tell", ALLOWED)
def test_an_allowed_history_has_no_violation(tell: Callable[[HistoryBuilder], None]) -> None:
    builder = HistoryBuilder()
    tell(builder)
    findings = builder.check()
    assert findings.clean, "\n".join(map(str, findings.violations))


def test_recovery_counts_from_the_death_of_the_holder() -> None:
    builder = HistoryBuilder()
    builder.enqueue()
    builder.lease(1)
    builder.note("effect", id="a", token=1)
    builder.note("kill", process="p")
    builder.rest(LEASE_MS)
    builder.overdue(1)
    builder.process = "reaper"
    builder.settle(1, "retry", failure="overdue")
    builder.lease(2, attempt=2)
    findings = builder.check()
    assert (findings.kills, findings.effects, findings.duplicates) == (1, 1, 1)
    assert findings.recovery_ms_p50 == pytest.approx(LEASE_MS + 400)
