"""Histories that break a limit, a rate, a turn, a group or the order of a family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.core.limits import Limit, Rate
from tests.crash.history.story import Story


def rate_broken(story: Story) -> None:
    for _ in range(3):
        story.note("rate", name="api", limit=2, per_ms=1_000)


def limit_exceeded(story: Story) -> None:
    story.declare(limits=(Limit(name="l", key="{tenant}", concurrency=1),))
    for token, id_ in enumerate("ab", 1):
        story.enqueue(id_, tenant="t")
        story.lease(token, id_=id_, tenant="t", task="work")
    for token, id_ in enumerate("ab", 1):
        story.finish(token, id_)


def limit_of_two_queues_exceeded(story: Story) -> None:
    for name in ("q", "moved"):
        story.declare(name, limits=(Limit(name="l", concurrency=1),))
    story.enqueue("a")
    story.enqueue("b", queue="moved")
    story.lease(1, id_="a", task="work")
    story.work("b", 2, queue="moved", task="work")
    story.finish(1)


def limit_lowered_and_exceeded(story: Story) -> None:
    for most in (3, 1):
        story.declare(limits=(Limit(name="l", concurrency=most),))
    for token, id_ in enumerate("ab", 1):
        story.enqueue(id_)
        story.lease(token, id_=id_, task="work")
    for token, id_ in enumerate("ab", 1):
        story.finish(token, id_)


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
    story.finish(1)


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
        story.finish(1, id_)
    story.lease(3, id_="c", group="g")
    story.work("d", 4, group="g")
    story.finish(3, "c")


def child_that_was_enqueued_twice_before_its_parent(story: Story) -> None:
    story.enqueue("p")
    fields: dict[str, Any] = {"after": ("p",), "after_on": "success", "parent_death": "cancel"}
    story.enqueue("a", answer="info", **fields)
    story.enqueue("a", "duplicate", **fields)
    story.work("a", 1)
    story.work("p", 2)


def child_before_its_parent(story: Story) -> None:
    story.enqueue("p")
    story.enqueue("a", after=("p",), after_on="success", parent_death="cancel")
    story.lease(1, id_="p")
    story.work("a", 2)
    story.finish(1, "p")


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


FLOW: list[tuple[str, Callable[[Story], None]]] = [
    ("I12", rate_broken),
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
