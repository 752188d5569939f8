"""What crashes, lost replies and people may bring about is not held against the store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.history.story import LEASE_MS, Story


def lost_reply_of_an_enqueue(story: Story) -> None:
    story.enqueue(answer="info")


def repeated_enqueue(story: Story) -> None:
    story.enqueue(answer="none")
    story.enqueue(status="duplicate")
    story.lease(1)
    story.settle(1, "complete")
    story.keep()


def late_settle_that_wins(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.rest(LEASE_MS)
    story.overdue(1)
    story.settle(1, "retry", failure="overdue")
    story.settle(1, "complete")
    story.settle(1, "complete")
    story.keep()


def lease_whose_answer_was_lost(story: Story) -> None:
    story.enqueue()
    story.call("lease", queues=("q",), answer="info")
    story.rest(LEASE_MS)
    story.overdue(7)
    story.settle(7, "retry", failure="overdue")
    story.lease(8, attempt=2)
    story.settle(8, "complete", attempt=2)
    story.keep()


def release_gives_the_attempt_back(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.settle(1, "release")
    story.lease(2)
    story.settle(2, "complete")
    story.keep()


def redriven(story: Story) -> None:
    story.enqueue()
    story.lease(1)
    story.settle(1, "bury", reason="explicit")
    story.amend("redrive")
    story.lease(2)
    story.settle(2, "complete")
    story.keep()


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
    story.settle(2, "complete")
    story.keep()


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
    story.settle(1, "complete")
    story.keep()


def rate_kept(story: Story) -> None:
    for _ in range(5):
        story.note("rate", name="api", limit=2, per_ms=150)


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
]


@pytest.mark.parametrize("tell", ALLOWED)
def test_what_is_allowed_is_not_held_against_the_store(tell: Callable[[Story], None]) -> None:
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
