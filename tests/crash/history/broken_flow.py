"""Histories that break a limit, a rate, a turn, a group or the order of a family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.core.limits import Limit, Rate
from tests.crash.history.builder import HistoryBuilder


def rate_broken(builder: HistoryBuilder) -> None:
    for _ in range(3):
        builder.note("rate", name="api", limit=2, per_ms=1_000)


def limit_exceeded(builder: HistoryBuilder) -> None:
    builder.declare(limits=(Limit(name="l", key="{tenant}", concurrency=1),))
    for token, id_ in enumerate("ab", 1):
        builder.enqueue(id_, tenant="t")
        builder.lease(token, id_=id_, tenant="t", task="work")
    for token, id_ in enumerate("ab", 1):
        builder.finish(token, id_)


def limit_of_two_queues_exceeded(builder: HistoryBuilder) -> None:
    for name in ("q", "moved"):
        builder.declare(name, limits=(Limit(name="l", concurrency=1),))
    builder.enqueue("a")
    builder.enqueue("b", queue="moved")
    builder.lease(1, id_="a", task="work")
    builder.work("b", 2, queue="moved", task="work")
    builder.finish(1)


def limit_lowered_and_exceeded(builder: HistoryBuilder) -> None:
    for most in (3, 1):
        builder.declare(limits=(Limit(name="l", concurrency=most),))
    for token, id_ in enumerate("ab", 1):
        builder.enqueue(id_)
        builder.lease(token, id_=id_, task="work")
    for token, id_ in enumerate("ab", 1):
        builder.finish(token, id_)


def rate_changed_and_broken(builder: HistoryBuilder) -> None:
    for count in (9, 1):
        builder.declare(limits=(Limit(name="l", rate=Rate(count=count, per_ms=1_000)),))
    for token, id_ in enumerate("ab", 1):
        builder.enqueue(id_)
        builder.work(id_, token, task="work")


def passed_within_its_lane(builder: HistoryBuilder) -> None:
    builder.declare("lanes", limits=(Limit(name="l", key="{tenant}", concurrency=1),))
    for id_ in "ab":
        builder.enqueue(id_, queue="lanes", tenant="t")
    for token, id_ in ((1, "b"), (2, "a")):
        builder.work(id_, token, queue="lanes", tenant="t", task="work")


def passed_though_it_is_old(builder: HistoryBuilder) -> None:
    builder.declare("aging", aging_ms=1_000)
    builder.enqueue("a", queue="aging", priority=0)
    builder.rest(5_000)
    builder.enqueue("b", queue="aging", priority=4)
    builder.work("b", 1, queue="aging", priority=4)
    builder.work("a", 2, queue="aging", priority=0)


def deadlocked(builder: HistoryBuilder) -> None:
    builder.note("deadlocks", count=1)


def rate_of_a_limit_broken(builder: HistoryBuilder) -> None:
    builder.declare(limits=(Limit(name="l", rate=Rate(count=1, per_ms=1_000)),))
    for token, id_ in enumerate("ab", 1):
        builder.enqueue(id_)
        builder.work(id_, token, task="work")


def group_leased_twice(builder: HistoryBuilder) -> None:
    builder.enqueue("a", group="g")
    builder.enqueue("b", group="g")
    builder.lease(1, id_="a", group="g")
    builder.work("b", 2, group="g")
    builder.finish(1)


def group_out_of_order(builder: HistoryBuilder) -> None:
    builder.enqueue("a", group="g")
    builder.enqueue("b", group="g")
    builder.work("b", 1, group="g")
    builder.work("a", 2, group="g")


def batch_of_two_calls(builder: HistoryBuilder) -> None:
    builder.declare(group_batch=2)
    group_leased_twice(builder)


def two_calls_after_a_larger_batch(builder: HistoryBuilder) -> None:
    builder.declare(group_batch=2)
    for id_ in "abcd":
        builder.enqueue(id_, group="g")
    builder.lease_many("ab", 1, group="g")
    for id_ in "ab":
        builder.finish(1, id_)
    builder.lease(3, id_="c", group="g")
    builder.work("d", 4, group="g")
    builder.finish(3, "c")


def child_that_was_enqueued_twice_before_its_parent(builder: HistoryBuilder) -> None:
    builder.enqueue("p")
    fields: dict[str, Any] = {"after": ("p",), "after_on": "success", "parent_death": "cancel"}
    builder.enqueue("a", answer="info", **fields)
    builder.enqueue("a", "duplicate", **fields)
    builder.work("a", 1)
    builder.work("p", 2)


def child_before_its_parent(builder: HistoryBuilder) -> None:
    builder.enqueue("p")
    builder.enqueue("a", after=("p",), after_on="success", parent_death="cancel")
    builder.lease(1, id_="p")
    builder.work("a", 2)
    builder.finish(1, "p")


def child_of_a_dead_parent(builder: HistoryBuilder) -> None:
    builder.enqueue("p")
    builder.enqueue("a", after=("p",), after_on="success", parent_death="cancel")
    builder.lease(1, id_="p")
    builder.settle(1, "bury", id="p", reason="explicit")
    builder.keep("dead", "p", reason="explicit")
    builder.work("a", 2)


def orphan_of_a_living_parent(builder: HistoryBuilder) -> None:
    builder.enqueue("p")
    builder.enqueue("a", after=("p",), after_on="success", parent_death="cancel")
    builder.work("p", 1)
    builder.keep("cancelled", reason="dependency")


def slot_leaked(builder: HistoryBuilder) -> None:
    builder.note("slot", limit="l", key="", used=1)


def slot_counts_more_than_its_leases(builder: HistoryBuilder) -> None:
    builder.note("audit", limit="l", key="", used=2, held=1)


def recount_mends(builder: HistoryBuilder) -> None:
    builder.call("recount", count=1)


FLOW: list[tuple[str, Callable[[HistoryBuilder], None]]] = [
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
