"""The checker accepts every history that crashes, lost replies and operators can cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.conformance.history import asked
from holdfast.core.limits import Limit, Rate
from holdfast.core.model import Queue
from tests.crash.history.story import LEASE_MS, Story


def lost_reply_of_an_enqueue(story: Story) -> None:
    story.enqueue(answer="info")


def repeated_enqueue(story: Story) -> None:
    story.enqueue(answer="none")
    story.enqueue(status="duplicate")
    story.lease(1)
    story.finish(1)


def late_settle_that_wins(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.rest(LEASE_MS)
    story.overdue(1)
    story.settle(1, "retry", failure="overdue")
    story.settle(1, "complete")
    story.finish(1)


def lease_whose_answer_was_lost(story: Story) -> None:
    story.enqueue()
    story.call("lease", queues=("q",), answer="info")
    story.rest(LEASE_MS)
    story.overdue(7)
    story.settle(7, "retry", failure="overdue")
    story.lease(8, attempt=2)
    story.finish(8, attempt=2)


def release_gives_the_attempt_back(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.settle(1, "release")
    story.lease(2)
    story.finish(2)


def redriven(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.settle(1, "bury", reason="explicit")
    story.amend("redrive")
    story.lease(2)
    story.finish(2)


def moved_to_the_dead_queue(story: Story) -> None:
    story.enqueue(queue="moved")
    story.lease(1, queue="moved")
    story.settle(1, "bury", reason="explicit", queue="moved")
    story.lease(2, queue="grave")
    story.settle(2, "complete", queue="grave")
    story.keep(queue="grave")


def deleted(story: Story) -> None:
    story.enqueue()
    story.amend("delete")


def enqueued_again_after_its_deletion(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.settle(1, "complete")
    story.amend("delete")
    story.enqueue(answer="none")
    story.lease(2)
    story.finish(2)


def two_at_once_under_one_key(story: Story) -> None:
    """Asked for first and carried out last: the other one had let go of the key by then."""
    answer = story.enqueue_slowly("b", key="k", key_window_ms=60_000)
    story.enqueue("a", key="k", key_window_ms=0)
    story.lease(1)
    story.settle(1, "complete")
    answer()
    story.lease(2, id_="b")
    story.settle(2, "complete", id="b")
    story.keep(created_at=1_000)
    story.keep(id_="b", created_at=1_600)


def replaced_with_other_overrides(story: Story) -> None:
    story.enqueue("a", key="k", key_window_ms=0, max_attempts=9)
    story.enqueue("b", "duplicate", key="k", key_policy="replace", max_attempts=1, holder="a")
    story.lease(1, digest="payload of b")
    story.settle(1, "bury", reason="attempts", failure="error")
    story.keep("dead", reason="attempts", digest="payload of b")


def wall_clock_set_forward(story: Story) -> None:
    story.enqueue(delay_ms=60_000, expires_ms=90_000)
    story.note("jump")
    story.lease(1)
    story.finish(1)


def rate_kept(story: Story) -> None:
    for _ in range(5):
        story.note("rate", name="api", limit=2, per_ms=150)


def limits_kept(story: Story) -> None:
    story.declare(
        limits=(
            Limit(name="l", key="{tenant}", concurrency=1),
            Limit(name="m", key="{region}", concurrency=1),
            Limit(name="r", rate=Rate(count=2, per_ms=1_000, burst=2)),
        )
    )
    for token, id_ in enumerate("ab", 1):
        story.enqueue(id_, tenant=id_)
        story.lease(token, id_=id_, tenant=id_, task="work")
    for token, id_ in enumerate("ab", 1):
        story.finish(token, id_)
    story.enqueue("c", tenant="a")
    story.work("c", 3, tenant="a", task="work")


def slot_of_a_lapsed_lease(story: Story) -> None:
    story.declare(limits=(Limit(name="l", concurrency=1),))
    story.enqueue("a")
    story.enqueue("b")
    story.lease(1, task="work")
    story.rest(LEASE_MS)
    story.settle(1, "retry", failure="overdue")
    story.lease(2, id_="b", task="work")
    story.finish(1)
    story.finish(2, "b")


def batch_of_a_group(story: Story) -> None:
    story.declare(group_batch=2)
    for id_ in "ab":
        story.enqueue(id_, group="g")
    story.lease_many("ab", 1, group="g")
    for id_ in "ba":
        story.finish(1, id_)


def head_of_a_group_taken_away(story: Story) -> None:
    story.enqueue("a", group="g")
    story.enqueue("b", group="g")
    story.amend("cancel")
    story.work("b", 1, group="g")
    story.keep("cancelled")


def family_in_order(story: Story) -> None:
    story.enqueue("p")
    story.enqueue("a", after=("p",), after_on="death", parent_death="cancel")
    story.enqueue("b", after=("a",), after_on="success", parent_death="run")
    story.enqueue("c", after=("p",), after_on="success", parent_death="cancel", group="g")
    story.enqueue("d", group="g")
    story.work("p", 1)
    story.keep("cancelled", reason="dependency")
    story.work("b", 2)
    story.work("c", 3, group="g")
    story.work("d", 4, group="g")


def key_of_an_orphan(story: Story) -> None:
    story.enqueue("p")
    story.enqueue("a", after=("p",), after_on="death", key="k", key_window_ms=0)
    story.work("p", 1)
    story.enqueue("b", key="k", key_window_ms=0)
    story.work("b", 2)
    story.keep("cancelled", reason="dependency")


def limit_lowered_under_its_leases(story: Story) -> None:
    story.declare(limits=(Limit(name="l", concurrency=2),))
    for token, id_ in enumerate("ab", 1):
        story.enqueue(id_)
        story.lease(token, id_=id_, task="work")
    story.declare(limits=(Limit(name="l", concurrency=1),))
    for token, id_ in enumerate("ab", 1):
        story.finish(token, id_)
    story.enqueue("c")
    story.work("c", 3, task="work")


def limit_raised_by_somebody_who_was_killed(story: Story) -> None:
    story.declare(limits=(Limit(name="l", concurrency=1),))
    raised = asked("declare", Queue(name="q", limits=(Limit(name="l", concurrency=2),)))
    story.call("declare", facts=raised["facts"], answer="none")
    for token, id_ in enumerate("ab", 1):
        story.enqueue(id_)
        story.lease(token, id_=id_, task="work")
    for token, id_ in enumerate("ab", 1):
        story.finish(token, id_)


def limit_that_counts_by_another_key_now(story: Story) -> None:
    for token, (id_, key) in enumerate((("a", ""), ("b", "{tenant}")), 1):
        story.declare(limits=(Limit(name="l", key=key, concurrency=1),))
        story.enqueue(id_, tenant="t")
        story.lease(token, id_=id_, tenant="t", task="work")
    for token, id_ in enumerate("ab", 1):
        story.finish(token, id_)


def rate_changed_within_its_window(story: Story) -> None:
    for token, id_ in enumerate("ab", 1):
        story.declare(limits=(Limit(name="l", rate=Rate(count=token, per_ms=1_000)),))
        story.enqueue(id_)
        story.work(id_, token, task="work")


def other_lane_first(story: Story) -> None:
    story.declare("lanes", limits=(Limit(name="l", key="{tenant}", concurrency=1),))
    for id_ in "ab":
        story.enqueue(id_, queue="lanes", tenant=id_)
    for token, id_ in enumerate("ba", 1):
        story.work(id_, token, queue="lanes", tenant=id_, task="work")


def higher_priority_first_for_a_while(story: Story) -> None:
    story.declare("aging", aging_ms=1_000)
    story.enqueue("a", queue="aging", priority=0)
    story.rest(3_000)
    story.enqueue("b", queue="aging", priority=4)
    story.work("b", 1, queue="aging", priority=4)
    story.work("a", 2, queue="aging", priority=0)


def key_of_a_job_that_arrived_late(story: Story) -> None:
    """The call was lost, its repeat met the holder, and a third copy came when that was gone."""
    story.enqueue("b", key="k", key_window_ms=0)
    story.enqueue("a", key="k", key_window_ms=0, answer="info")
    story.enqueue("a", "duplicate", holder="b", key="k", key_window_ms=0)
    story.work("b", 1)
    story.enqueue("a", key="k", key_window_ms=0, answer="none")
    story.work("a", 2)


ALLOWED = [
    lost_reply_of_an_enqueue,
    repeated_enqueue,
    late_settle_that_wins,
    lease_whose_answer_was_lost,
    release_gives_the_attempt_back,
    redriven,
    moved_to_the_dead_queue,
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
]


@pytest.mark.parametrize("tell", ALLOWED)
def test_an_allowed_history_has_no_violation(tell: Callable[[Story], None]) -> None:
    story = Story()
    tell(story)
    findings = story.check()
    assert findings.clean, "\n".join(map(str, findings.violations))


def test_recovery_counts_from_the_death_of_the_holder() -> None:
    story = Story()
    story.enqueue()
    story.lease(1)
    story.note("effect", id="a", token=1)
    story.note("kill", process="p")
    story.rest(LEASE_MS)
    story.overdue(1)
    story.process = "reaper"
    story.settle(1, "retry", failure="overdue")
    story.lease(2, attempt=2)
    findings = story.check()
    assert (findings.kills, findings.effects, findings.duplicates) == (1, 1, 1)
    assert findings.recovery_ms_p50 == pytest.approx(LEASE_MS + 400)
