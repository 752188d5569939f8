"""Histories in which a job is lost, doubled, leased or ended as it must never be."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.conformance.history import Entry
from tests.crash.history.builder import LEASE_MS, HistoryBuilder


def lost(builder: HistoryBuilder) -> None:
    builder.enqueue()


def from_nowhere(builder: HistoryBuilder) -> None:
    builder.keep("waiting", "ghost", digest="unheard of")


def refused_yet_there(builder: HistoryBuilder) -> None:
    builder.enqueue(status="refused")
    builder.keep()


def leased_after_done(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.settle(1, "complete")
    builder.lease(2, attempt=1)
    builder.keep()


def settled_twice(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.settle(1, "complete")
    builder.settle(1, "bury", reason="explicit")
    builder.keep()


def leased_after_deletion(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.amend("delete")
    builder.lease(1)
    builder.finish(1)


def leased_twice(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.lease(2, attempt=2)
    builder.finish(2, attempt=2)


def token_repeated(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.settle(1, "retry")
    builder.lease(1, attempt=2)
    builder.finish(1, attempt=2)


def called_overdue_early(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.overdue(1)
    builder.finish(1)


def reaped_early(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.settle(1, "retry", failure="overdue")
    builder.lease(2, attempt=2)
    builder.finish(2, attempt=2)


def stale_settle(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.settle(1, "retry")
    builder.lease(2, attempt=2)
    builder.finish(1)


def renewed_too_late(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.rest(2 * LEASE_MS)
    builder.renew(1)
    builder.finish(1)


def attempt_not_counted(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.settle(1, "retry")
    builder.lease(2, attempt=1)
    builder.finish(2)


def attempts_beyond_the_bound(builder: HistoryBuilder) -> None:
    builder.enqueue(max_attempts=1)
    builder.lease(1)
    builder.settle(1, "retry")
    builder.lease(2, attempt=2)
    builder.finish(2, attempt=2)


def retried_though_exhausted(builder: HistoryBuilder) -> None:
    builder.enqueue(max_attempts=1)
    builder.lease(1)
    builder.settle(1, "retry", failure="error")
    builder.finish(1)


def dead_without_cause(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.keep("dead", reason="attempts")


def dead_for_another_reason(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.settle(1, "bury", reason="explicit")
    builder.keep("dead", reason="expired")


def copied(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.keep("dead", reason="explicit")
    builder.amend("bury", reason="explicit")
    builder.keep("waiting", "a.copy", digest="payload of a")


def leased_after_expiry(builder: HistoryBuilder) -> None:
    builder.enqueue(expires_ms=500)
    builder.rest(1_000)
    builder.lease(1)
    builder.finish(1)


def leased_after_expiry_by_the_store(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1, leased_at=10, expires_at=10)
    builder.finish(1)


def leased_early(builder: HistoryBuilder) -> None:
    builder.enqueue(delay_ms=5_000)
    builder.lease(1)
    builder.finish(1)


def retried_early(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.settle(1, "retry", delay_ms=5_000)
    builder.lease(2, attempt=2)
    builder.finish(2, attempt=2)


def tick_fired_twice(builder: HistoryBuilder) -> None:
    for id_ in ("a", "b"):
        builder.enqueue(id_, tick="nightly/1")
        builder.keep("waiting", id_)


def overtaken(builder: HistoryBuilder) -> None:
    builder.enqueue("a")
    builder.enqueue("b")
    builder.lease(1, id_="b")
    builder.lease(2, id_="a")
    for id_, token in (("a", 2), ("b", 1)):
        builder.finish(token, id_)


def overtaken_after_a_child_was_enqueued(builder: HistoryBuilder) -> None:
    builder.enqueue("a")
    builder.enqueue("b")
    builder.enqueue("c", after=("a",), after_on="success", parent_death="cancel")
    for token, id_ in enumerate("bac", 1):
        builder.work(id_, token)


def overtaken_long_after_an_abandoned_call(builder: HistoryBuilder) -> None:
    builder.enqueue("a")
    builder.enqueue("b")
    builder.enqueue("c", after=("a",), after_on="success", answer="info")
    builder.rest(5_000)
    for token, id_ in enumerate("ba", 1):
        builder.work(id_, token)


def follow_up_of_a_lost_completion(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    child = Entry(id="child", queue="q", digest="payload of child")
    builder.settle(1, "retry")
    builder.lease(2, attempt=2)
    builder.settle(1, "complete", "lost", then=(child,))
    builder.settle(2, "bury", reason="explicit", attempt=2)
    builder.keep("dead", reason="explicit")
    builder.keep("waiting", "child")


def follow_up_before_its_parent(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.lease(9, id_="child")
    child = Entry(id="child", queue="q", digest="payload of child")
    builder.settle(1, "complete", then=(child,))
    builder.settle(9, "complete", id="child")
    builder.keep()
    builder.keep(id_="child")


def key_held_twice(builder: HistoryBuilder) -> None:
    for id_ in ("a", "b"):
        builder.enqueue(id_, key="k", key_window_ms=0)
        builder.keep("waiting", id_, created_at=5)


def key_used_again_within_its_window(builder: HistoryBuilder) -> None:
    builder.enqueue("a", key="k", key_window_ms=60_000)
    builder.lease(1)
    builder.settle(1, "complete")
    builder.enqueue("b", key="k", key_window_ms=60_000)
    builder.keep(created_at=1_000)
    builder.keep("waiting", "b", created_at=1_500)


def key_taken_within_its_window(builder: HistoryBuilder) -> None:
    builder.enqueue("a", key="k", key_window_ms=60_000, key_hold="window")
    builder.enqueue("b", key="k", key_window_ms=60_000, key_hold="window")
    builder.keep("waiting", created_at=1_000)
    builder.keep("waiting", "b", created_at=1_500)


def key_taken_from_an_unfinished_job(builder: HistoryBuilder) -> None:
    """The one that says `window` came first: only a later job may say so."""
    builder.enqueue("a", key="k", key_window_ms=0, key_hold="window")
    builder.rest(1_000)
    builder.enqueue("b", key="k", key_window_ms=0, key_hold="job")
    builder.keep("waiting", created_at=1_000)
    builder.keep("waiting", "b", created_at=5_000)


def payload_changed(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1, digest="something else")
    builder.finish(1)


def never_finished(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.keep("waiting")


def not_drained(builder: HistoryBuilder) -> None:
    builder.note("undrained", after_ms=5)


def store_disagrees(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.settle(1, "complete")
    builder.keep("dead", reason="explicit")


def counts_disagree(builder: HistoryBuilder) -> None:
    counts = {"waiting": 0, "leased": 0, "done": 3, "dead": 0, "cancelled": 0}
    builder.note("counts", queue="q", exact=True, **counts)


def dead_letter_of_a_living_job(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1, dead=True)
    builder.keep("dead", reason="explicit")


def dead_letter_with_an_attempt_more(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.settle(1, "bury", reason="explicit")
    builder.lease(2, attempt=2, dead=True)
    builder.settle(2, "retry", attempt=2, dead=True)
    builder.keep("dead", reason="explicit")


def dead_letter_that_outlives_its_handling(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.settle(1, "bury", reason="explicit")
    builder.lease(2, dead=True)
    builder.settle(2, "complete", dead=True)
    builder.keep("dead", reason="explicit")


def dead_letter_with_two_holders(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.settle(1, "bury", reason="explicit")
    builder.lease(2, dead=True)
    builder.lease(3, dead=True)
    builder.keep("dead", reason="explicit")


def effect_missing(builder: HistoryBuilder) -> None:
    builder.enqueue()
    builder.lease(1)
    builder.note("effect", id="a", token=1)
    builder.settle(1, "retry")
    builder.lease(2, attempt=2)
    builder.finish(2, attempt=2)


JOBS: list[tuple[str, Callable[[HistoryBuilder], None]]] = [
    ("I1", lost),
    ("I2", from_nowhere),
    ("I4", dead_letter_with_two_holders),
    ("I22", dead_letter_of_a_living_job),
    ("I22", dead_letter_with_an_attempt_more),
    ("I22", dead_letter_that_outlives_its_handling),
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
    ("I10", overtaken_after_a_child_was_enqueued),
    ("I10", overtaken_long_after_an_abandoned_call),
    ("I11", follow_up_of_a_lost_completion),
    ("I11", follow_up_before_its_parent),
    ("I13", key_held_twice),
    ("I13", key_taken_within_its_window),
    ("I13", key_taken_from_an_unfinished_job),
    ("I13", key_used_again_within_its_window),
    ("I14", payload_changed),
    ("I15", never_finished),
    ("I15", not_drained),
    ("I16", store_disagrees),
    ("I16", counts_disagree),
    ("I17", effect_missing),
]
