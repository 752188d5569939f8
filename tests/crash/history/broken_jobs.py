"""Histories in which a job is lost, doubled, leased or ended as it must never be."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.conformance.history import Entry
from tests.crash.history.story import LEASE_MS, Story


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
    story.finish(1)


def leased_twice(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.lease(2, attempt=2)
    story.finish(2, attempt=2)


def token_repeated(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.settle(1, "retry")
    story.lease(1, attempt=2)
    story.finish(1, attempt=2)


def called_overdue_early(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.overdue(1)
    story.finish(1)


def reaped_early(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.settle(1, "retry", failure="overdue")
    story.lease(2, attempt=2)
    story.finish(2, attempt=2)


def stale_settle(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.settle(1, "retry")
    story.lease(2, attempt=2)
    story.finish(1)


def renewed_too_late(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.rest(2 * LEASE_MS)
    story.renew(1)
    story.finish(1)


def attempt_not_counted(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.settle(1, "retry")
    story.lease(2, attempt=1)
    story.finish(2)


def attempts_beyond_the_bound(story: Story) -> None:
    story.enqueue(max_attempts=1)
    story.lease(1)
    story.settle(1, "retry")
    story.lease(2, attempt=2)
    story.finish(2, attempt=2)


def retried_though_exhausted(story: Story) -> None:
    story.enqueue(max_attempts=1)
    story.lease(1)
    story.settle(1, "retry", failure="error")
    story.finish(1)


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
    story.finish(1)


def leased_after_expiry_by_the_store(story: Story) -> None:
    story.enqueue()
    story.lease(1, leased_at=10, expires_at=10)
    story.finish(1)


def leased_early(story: Story) -> None:
    story.enqueue(delay_ms=5_000)
    story.lease(1)
    story.finish(1)


def retried_early(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.settle(1, "retry", delay_ms=5_000)
    story.lease(2, attempt=2)
    story.finish(2, attempt=2)


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
        story.finish(token, id_)


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
    story.finish(1)


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
    story.finish(2, attempt=2)


JOBS: list[tuple[str, Callable[[Story], None]]] = [
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
    ("I13", key_held_twice),
    ("I13", key_used_again_within_its_window),
    ("I14", payload_changed),
    ("I15", never_finished),
    ("I15", not_drained),
    ("I16", store_disagrees),
    ("I16", counts_disagree),
    ("I17", effect_missing),
]
