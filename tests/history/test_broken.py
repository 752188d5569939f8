"""The checker finds each invariant that a history breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.core.flow import Limit, Rate
from holdfast.testing.checker.findings import INVARIANTS
from holdfast.testing.history import Entry
from tests.history.story import LEASE_MS, Story


def lost(story: Story) -> None:
    story.enqueue()


def from_nowhere(story: Story) -> None:
    story.keep("waiting", "ghost", digest="unheard of")


def refused_yet_there(story: Story) -> None:
    story.enqueue(status="refused")
    story.keep()


def leased_after_done(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.settle(1, "complete")
    story.lease(2, attempt=1)
    story.keep()


def settled_twice(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.settle(1, "complete")
    story.settle(1, "bury", reason="explicit")
    story.keep()


def leased_after_deletion(story: Story) -> None:
    story.enqueue()
    story.amend("delete")
    story.lease(1)
    story.settle(1, "complete")
    story.keep()


def leased_twice(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.lease(2, attempt=2)
    story.settle(2, "complete", attempt=2)
    story.keep()


def token_repeated(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.settle(1, "retry")
    story.lease(1, attempt=2)
    story.settle(1, "complete", attempt=2)
    story.keep()


def called_overdue_early(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.overdue(1)
    story.settle(1, "complete")
    story.keep()


def reaped_early(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.settle(1, "retry", failure="overdue")
    story.lease(2, attempt=2)
    story.settle(2, "complete", attempt=2)
    story.keep()


def stale_settle(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.settle(1, "retry")
    story.lease(2, attempt=2)
    story.settle(1, "complete")
    story.keep()


def renewed_too_late(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.rest(2 * LEASE_MS)
    story.renew(1)
    story.settle(1, "complete")
    story.keep()


def attempt_not_counted(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.settle(1, "retry")
    story.lease(2, attempt=1)
    story.settle(2, "complete")
    story.keep()


def attempts_beyond_the_bound(story: Story) -> None:
    story.enqueue(max_attempts=1)
    story.lease(1)
    story.settle(1, "retry")
    story.lease(2, attempt=2)
    story.settle(2, "complete", attempt=2)
    story.keep()


def retried_though_exhausted(story: Story) -> None:
    story.enqueue(max_attempts=1)
    story.lease(1)
    story.settle(1, "retry", failure="error")
    story.settle(1, "complete")
    story.keep()


def dead_without_cause(story: Story) -> None:
    story.enqueue()
    story.keep("dead", reason="attempts")


def dead_for_another_reason(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.settle(1, "bury", reason="explicit")
    story.keep("dead", reason="expired")


def copied(story: Story) -> None:
    story.enqueue()
    story.keep("dead", reason="explicit")
    story.amend("bury", reason="explicit")
    story.keep("waiting", "a.copy", digest="payload of a")


def leased_after_expiry(story: Story) -> None:
    story.enqueue(expires_ms=500)
    story.rest(1_000)
    story.lease(1)
    story.settle(1, "complete")
    story.keep()


def leased_after_expiry_by_the_store(story: Story) -> None:
    story.enqueue()
    story.lease(1, leased_at=10, expires_at=10)
    story.settle(1, "complete")
    story.keep()


def leased_early(story: Story) -> None:
    story.enqueue(delay_ms=5_000)
    story.lease(1)
    story.settle(1, "complete")
    story.keep()


def retried_early(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.settle(1, "retry", delay_ms=5_000)
    story.lease(2, attempt=2)
    story.settle(2, "complete", attempt=2)
    story.keep()


def tick_fired_twice(story: Story) -> None:
    for id_ in ("a", "b"):
        story.enqueue(id_, tick="nightly/1")
        story.keep("waiting", id_)


def overtaken(story: Story) -> None:
    story.enqueue("a")
    story.enqueue("b")
    story.lease(1, id_="b")
    story.lease(2, id_="a")
    for id_, token in (("a", 2), ("b", 1)):
        story.settle(token, "complete", id=id_)
        story.keep(id_=id_)


def follow_up_of_a_lost_completion(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    child = Entry(id="child", queue="q", digest="payload of child")
    story.settle(1, "retry")
    story.lease(2, attempt=2)
    story.settle(1, "complete", "lost", then=(child,))
    story.settle(2, "bury", reason="explicit", attempt=2)
    story.keep("dead", reason="explicit")
    story.keep("waiting", "child")


def follow_up_before_its_parent(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.lease(9, id_="child")
    child = Entry(id="child", queue="q", digest="payload of child")
    story.settle(1, "complete", then=(child,))
    story.settle(9, "complete", id="child")
    story.keep()
    story.keep(id_="child")


def rate_broken(story: Story) -> None:
    for _ in range(3):
        story.note("rate", name="api", limit=2, per_ms=1_000)


def key_held_twice(story: Story) -> None:
    for id_ in ("a", "b"):
        story.enqueue(id_, key="k", key_window_ms=0)
        story.keep("waiting", id_, created_at=5)


def key_used_again_within_its_window(story: Story) -> None:
    story.enqueue("a", key="k", key_window_ms=60_000)
    story.lease(1)
    story.settle(1, "complete")
    story.enqueue("b", key="k", key_window_ms=60_000)
    story.keep(created_at=1_000)
    story.keep("waiting", "b", created_at=1_500)


def payload_changed(story: Story) -> None:
    story.enqueue()
    story.lease(1, digest="something else")
    story.settle(1, "complete")
    story.keep()


def never_finished(story: Story) -> None:
    story.enqueue()
    story.keep("waiting")


def not_drained(story: Story) -> None:
    story.note("undrained", after_ms=5)


def store_disagrees(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.settle(1, "complete")
    story.keep("dead", reason="explicit")


def counts_disagree(story: Story) -> None:
    counts = {"waiting": 0, "leased": 0, "done": 3, "dead": 0, "cancelled": 0}
    story.note("counts", queue="q", exact=True, **counts)


def effect_missing(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.note("effect", id="a", token=1)
    story.settle(1, "retry")
    story.lease(2, attempt=2)
    story.settle(2, "complete", attempt=2)
    story.keep()


def limit_exceeded(story: Story) -> None:
    story.declare(limits=(Limit(name="l", key="{tenant}", concurrency=1),))
    for token, id_ in enumerate("ab", 1):
        story.enqueue(id_, tenant="t")
        story.lease(token, id_=id_, tenant="t", task="work")
    for token, id_ in enumerate("ab", 1):
        story.settle(token, "complete", id=id_)
        story.keep(id_=id_)


def limit_of_two_queues_exceeded(story: Story) -> None:
    for name in ("q", "moved"):
        story.declare(name, limits=(Limit(name="l", concurrency=1),))
    story.enqueue("a")
    story.enqueue("b", queue="moved")
    story.lease(1, id_="a", task="work")
    story.work("b", 2, queue="moved", task="work")
    story.settle(1, "complete")
    story.keep()


def limit_lowered_and_exceeded(story: Story) -> None:
    for most in (3, 1):
        story.declare(limits=(Limit(name="l", concurrency=most),))
    for token, id_ in enumerate("ab", 1):
        story.enqueue(id_)
        story.lease(token, id_=id_, task="work")
    for token, id_ in enumerate("ab", 1):
        story.settle(token, "complete", id=id_)
        story.keep(id_=id_)


def rate_changed_and_broken(story: Story) -> None:
    for count in (9, 1):
        story.declare(limits=(Limit(name="l", rate=Rate(count=count, per_ms=1_000)),))
    for token, id_ in enumerate("ab", 1):
        story.enqueue(id_)
        story.work(id_, token, task="work")


def passed_within_its_lane(story: Story) -> None:
    story.declare("lanes", limits=(Limit(name="l", key="{tenant}", concurrency=1),))
    for id_ in "ab":
        story.enqueue(id_, queue="lanes", tenant="t")
    for token, id_ in ((1, "b"), (2, "a")):
        story.work(id_, token, queue="lanes", tenant="t", task="work")


def passed_though_it_is_old(story: Story) -> None:
    story.declare("aging", aging_ms=1_000)
    story.enqueue("a", queue="aging", priority=0)
    story.rest(5_000)
    story.enqueue("b", queue="aging", priority=4)
    story.work("b", 1, queue="aging", priority=4)
    story.work("a", 2, queue="aging", priority=0)


def deadlocked(story: Story) -> None:
    story.note("deadlocks", count=1)


def rate_of_a_limit_broken(story: Story) -> None:
    story.declare(limits=(Limit(name="l", rate=Rate(count=1, per_ms=1_000)),))
    for token, id_ in enumerate("ab", 1):
        story.enqueue(id_)
        story.work(id_, token, task="work")


def group_leased_twice(story: Story) -> None:
    story.enqueue("a", group="g")
    story.enqueue("b", group="g")
    story.lease(1, id_="a", group="g")
    story.work("b", 2, group="g")
    story.settle(1, "complete")
    story.keep()


def group_out_of_order(story: Story) -> None:
    story.enqueue("a", group="g")
    story.enqueue("b", group="g")
    story.work("b", 1, group="g")
    story.work("a", 2, group="g")


def batch_of_two_calls(story: Story) -> None:
    story.declare(group_batch=2)
    group_leased_twice(story)


def two_calls_after_a_larger_batch(story: Story) -> None:
    story.declare(group_batch=2)
    for id_ in "abcd":
        story.enqueue(id_, group="g")
    story.lease_many("ab", 1, group="g")
    for id_ in "ab":
        story.settle(1, "complete", id=id_)
        story.keep(id_=id_)
    story.lease(3, id_="c", group="g")
    story.work("d", 4, group="g")
    story.settle(3, "complete", id="c")
    story.keep(id_="c")


def child_that_was_enqueued_twice_before_its_parent(story: Story) -> None:
    story.enqueue("p")
    said: dict[str, Any] = {"after": ("p",), "after_on": "success", "parent_death": "cancel"}
    story.enqueue("a", answer="info", **said)
    story.enqueue("a", "duplicate", **said)
    story.work("a", 1)
    story.work("p", 2)


def child_before_its_parent(story: Story) -> None:
    story.enqueue("p")
    story.enqueue("a", after=("p",), after_on="success", parent_death="cancel")
    story.lease(1, id_="p")
    story.work("a", 2)
    story.settle(1, "complete", id="p")
    story.keep(id_="p")


def child_of_a_dead_parent(story: Story) -> None:
    story.enqueue("p")
    story.enqueue("a", after=("p",), after_on="success", parent_death="cancel")
    story.lease(1, id_="p")
    story.settle(1, "bury", id="p", reason="explicit")
    story.keep("dead", "p", reason="explicit")
    story.work("a", 2)


def orphan_of_a_living_parent(story: Story) -> None:
    story.enqueue("p")
    story.enqueue("a", after=("p",), after_on="success", parent_death="cancel")
    story.work("p", 1)
    story.keep("cancelled", reason="dependency")


def slot_leaked(story: Story) -> None:
    story.note("slot", limit="l", key="", used=1)


def slot_counts_more_than_its_leases(story: Story) -> None:
    story.note("audit", limit="l", key="", used=2, held=1)


def recount_mends(story: Story) -> None:
    story.call("recount", count=1)


BROKEN: list[tuple[str, Callable[[Story], None]]] = [
    ("I1", lost),
    ("I2", from_nowhere),
    ("I2", refused_yet_there),
    ("I3", leased_after_done),
    ("I3", settled_twice),
    ("I3", leased_after_deletion),
    ("I4", leased_twice),
    ("I4", token_repeated),
    ("I4", called_overdue_early),
    ("I4", reaped_early),
    ("I5", stale_settle),
    ("I5", renewed_too_late),
    ("I6", attempt_not_counted),
    ("I6", attempts_beyond_the_bound),
    ("I7", retried_though_exhausted),
    ("I7", dead_without_cause),
    ("I7", dead_for_another_reason),
    ("I7", copied),
    ("I8", leased_after_expiry),
    ("I8", leased_after_expiry_by_the_store),
    ("I9", leased_early),
    ("I9", retried_early),
    ("I9", tick_fired_twice),
    ("I10", overtaken),
    ("I11", follow_up_of_a_lost_completion),
    ("I11", follow_up_before_its_parent),
    ("I12", rate_broken),
    ("I13", key_held_twice),
    ("I13", key_used_again_within_its_window),
    ("I14", payload_changed),
    ("I15", never_finished),
    ("I15", not_drained),
    ("I16", store_disagrees),
    ("I16", counts_disagree),
    ("I17", effect_missing),
    ("I18", limit_exceeded),
    ("I18", limit_of_two_queues_exceeded),
    ("I18", limit_lowered_and_exceeded),
    ("I12", rate_changed_and_broken),
    ("I10", passed_within_its_lane),
    ("I10", passed_though_it_is_old),
    ("I15", deadlocked),
    ("I12", rate_of_a_limit_broken),
    ("I19", group_leased_twice),
    ("I19", group_out_of_order),
    ("I19", batch_of_two_calls),
    ("I19", two_calls_after_a_larger_batch),
    ("I20", child_before_its_parent),
    ("I20", child_of_a_dead_parent),
    ("I20", child_that_was_enqueued_twice_before_its_parent),
    ("I20", orphan_of_a_living_parent),
    ("I21", slot_leaked),
    ("I21", slot_counts_more_than_its_leases),
    ("I21", recount_mends),
]


@pytest.mark.parametrize(("rule", "tell"), BROKEN, ids=[tell.__name__ for _, tell in BROKEN])
def test_a_broken_invariant_is_found(rule: str, tell: Callable[[Story], None]) -> None:
    story = Story()
    tell(story)
    findings = story.check()
    assert rule in findings.rules, findings
    assert rule in str(findings)


def test_every_invariant_has_a_story() -> None:
    assert {rule for rule, _ in BROKEN} == set(INVARIANTS)
