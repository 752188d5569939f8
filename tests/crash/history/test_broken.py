"""The checker finds each invariant that a history breaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.conformance.checker.findings import INVARIANTS
from tests.crash.history.broken_flow import FLOW
from tests.crash.history.broken_jobs import JOBS
from tests.crash.history.builder import HistoryBuilder

BROKEN = JOBS + FLOW


@pytest.mark.parametrize(("rule", "tell"), BROKEN, ids=[tell.__name__ for _, tell in BROKEN])
def test_a_broken_invariant_is_found(rule: str, tell: Callable[[HistoryBuilder], None]) -> None:
    builder = HistoryBuilder()
    tell(builder)
    findings = builder.check()
    assert rule in findings.rules, findings
    assert rule in str(findings)


def test_every_invariant_has_a_story() -> None:
    assert {rule for rule, _ in BROKEN} == set(INVARIANTS)


def test_a_call_after_the_dump_is_refused() -> None:
    """The dump would lack its job, and a job that was never lost would be reported."""
    builder = HistoryBuilder()
    builder.note("dumped")
    builder.enqueue("late")
    with pytest.raises(ValueError, match="late after the dump"):
        builder.check()
