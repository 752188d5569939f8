"""Each condition of a filter at its edges; the contract compares engines with it."""

from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from holdfast.conformance.inputs import filters
from holdfast.core.amend import matches
from holdfast.core.model import Job, JobFilter, Reason, State
from tests.unit.core.strategies import NOW, jobs

JOB = Job(
    id="id-1",
    task="mail.send",
    queue="q",
    state=State.DEAD,
    version=4,
    created_at=100,
    finished_at=NOW - 50,
    worker="w",
    reason=Reason.CRASHED,
    key="k%1",
    tenant="Ten",
    group="g",
    labels={"a": "1", "b": "2"},
)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"ids": ("x", "id-1")}, True),
        ({"ids": ()}, False),
        ({"queue": "q"}, True),
        ({"queue": "Q"}, False),
        ({"states": (State.DEAD, State.DONE)}, True),
        ({"states": ()}, False),
        ({"task": "mail"}, False),
        ({"tenant": "Ten"}, True),
        ({"group": "h"}, False),
        ({"key": "k%1"}, True),
        ({"worker": "w"}, True),
        ({"reason": Reason.CRASHED}, True),
        ({"reason": Reason.EXPIRED}, False),
        ({"version": 4}, True),
        ({"version": 3}, False),
        ({"labels": {"b": "2"}}, True),
        ({"labels": {"b": "1"}}, False),
        ({"labels": {"c": "1"}}, False),
        ({"labels": {}}, True),
        ({"search": "d-1"}, True),
        ({"search": "mail."}, True),
        ({"search": "%1"}, True),
        ({"search": "ten"}, False),
        ({"search": "Te"}, True),
        ({"search": ""}, True),
        ({"created_from": 100}, True),
        ({"created_from": 101}, False),
        ({"created_before": 101}, True),
        ({"created_before": 100}, False),
        ({"finished_before_ms": 50}, True),
        ({"finished_before_ms": 51}, False),
        ({"expired": True}, False),
        ({"expired": False}, True),
    ],
    ids=str,
)
def test_each_field(fields: dict[str, Any], expected: bool) -> None:
    assert matches(JobFilter(**fields), JOB, NOW) is expected


def test_only_a_waiting_job_is_expired() -> None:
    waiting = replace(JOB, state=State.WAITING, expires_at=NOW)
    assert matches(JobFilter(expired=True), waiting, NOW)
    assert not matches(JobFilter(expired=True), waiting, NOW - 1)
    assert not matches(JobFilter(expired=True), replace(waiting, state=State.LEASED), NOW)


def test_an_unfinished_job_did_not_finish_before() -> None:
    unfinished = replace(JOB, state=State.WAITING, finished_at=None)
    assert not matches(JobFilter(finished_before_ms=0), unfinished, NOW)


@given(filters, jobs())
def test_fields_together_match_exactly_when_each_does(wanted: JobFilter, job: Job) -> None:
    given_ = {name: getattr(wanted, name) for name in JobFilter.__struct_fields__}
    alone = [JobFilter(**{name: value}) for name, value in given_.items() if value is not None]
    assert matches(wanted, job, NOW) == all(matches(each, job, NOW) for each in alone)
