"""The line for each job on the worker's terminal."""

from typing import Any

import pytest

from holdfast.core.model import Failure, Job, Lease, Reason
from holdfast.core.verdict import Bury, Complete, Release, Retry, Verdict
from holdfast.worker.supervisor.held_leases import HeldLease
from holdfast.worker.supervisor.settle import JobLog, settled_fields, settled_line

MISSING = Failure(
    type="KeyError", message="'customer'", trace='  File "/a/shop.py", line 7, in bill\n'
)

GIVEN: dict[str, Any] = {"id": "j", "task": "bill", "queue": "default", "attempt": 1}


def held(
    verdict: Verdict, *, lost: bool = False, cancelled: bool = False, **fields: Any
) -> HeldLease:
    job = Job(**{**GIVEN, "cancel_requested": cancelled, **fields})
    lease = Lease(job=job, token=1, lease_ms=1_000)
    one = HeldLease(lease, 0.0, "python")
    one.came_at, one.verdict, one.lost = 10.0, verdict, lost
    return one


@pytest.mark.parametrize(
    ("one", "line"),
    [
        (held(Complete()), "j bill done after 12 ms"),
        (
            held(Retry(1_500, MISSING)),
            (
                "j bill failed after 12 ms: KeyError: 'customer' at shop.py:7 in bill;"
                " attempt 2 starts in 1.5 s"
            ),
        ),
        (held(Release("not now")), "j bill released after 12 ms: not now"),
        (held(Release(), cancelled=True), "j bill cancelled after 12 ms"),
        (held(Complete(), lost=True), "j bill lost its lease after 12 ms"),
        (
            held(Complete(), task="command", payload=b'{"command": ["echo", "a b"]}'),
            "j echo 'a b' done after 12 ms",
        ),
    ],
)
def test_a_line_says_what_happened(one: HeldLease, line: str) -> None:
    assert settled_line(one, 10.012) == line


def test_a_line_of_json_has_the_fields_of_the_job() -> None:
    assert settled_fields(held(Retry(1_500, MISSING)), 10.012) == {
        "job_id": "j",
        "attempt": 1,
        "task": "bill",
        "queue": "default",
        "outcome": "failed",
        "ms": 12,
    }


def test_a_line_is_bounded() -> None:
    failure = Failure(type="E", message="x" * 10_000)
    assert len(settled_line(held(Retry(0, failure), id="j" * 500), 11)) == 1_000


def test_a_fast_worker_writes_few_lines() -> None:
    now, lines = [5.0], list[str]()
    log = JobLog(lambda line, _: lines.append(line), lambda: now[0])
    log.add([held(Complete())] * 1_000)
    log.add([held(Release())] * 2)
    assert len(lines) == JobLog.LINES_MAX
    log.flush()
    assert len(lines) == JobLog.LINES_MAX
    now[0] = 6.1
    log.flush()
    assert lines[-1] == "and 982 more jobs: 980 done, 2 released"
    log.add([held(Complete())])
    assert len(lines) == JobLog.LINES_MAX + 2


def test_a_death_has_the_line_of_the_log_alone() -> None:
    lines = list[str]()
    log = JobLog(lambda line, _: lines.append(line), lambda: 10.0)
    log.add([held(Bury(Reason.ATTEMPTS, MISSING)), held(Bury(), lost=True)])
    assert lines == ["j bill lost its lease after 0 ms"]
