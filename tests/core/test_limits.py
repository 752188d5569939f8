"""The bounds fit each other."""

import pytest

from holdfast.core import limits
from holdfast.core.checks import check_queue
from holdfast.core.model import Queue
from holdfast.testing import hostile


def test_the_defaults_are_within_the_bounds() -> None:
    check_queue(Queue(name="default"))


def test_no_instant_leaves_the_safe_range_of_json_readers() -> None:
    """A job enqueued in 2100 with the longest delay, then leased for the longest time."""
    in_2100 = 4_102_444_800_000
    latest = in_2100 + limits.DELAY_MS_MAX + limits.LEASE_MS_MAX + limits.RETENTION_MS_MAX
    assert latest < 2**53


@pytest.mark.parametrize("name", hostile.QUEUE_NAMES)
def test_odd_names_that_are_right(name: str) -> None:
    assert limits.QUEUE_NAME.match(name)
    assert limits.NAMESPACE.match(name)


@pytest.mark.parametrize("number", range(len(hostile.BAD_QUEUE_NAMES)))
def test_names_that_are_wrong(number: int) -> None:
    name = hostile.BAD_QUEUE_NAMES[number]
    assert not limits.QUEUE_NAME.match(name)
    assert not limits.NAMESPACE.match(name)


def test_no_pattern_lets_a_newline_through_at_the_end() -> None:
    patterns = (
        limits.QUEUE_NAME,
        limits.TASK_NAME,
        limits.JOB_ID,
        limits.NAMESPACE,
        limits.RECORD_KIND,
        limits.CONTENT_TYPE,
    )
    for pattern in patterns:
        assert pattern.match("a")
        assert not pattern.match("a\n")
