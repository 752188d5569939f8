"""Failures of dead children, and what becomes of their calls."""

import pytest

from holdfast.core.model import Failure, FailureKind, Job, Lease
from holdfast.worker.supervisor.dispatch import PlacedCall, PooledChild, crash_failure, judge_calls
from holdfast.worker.supervisor.held_leases import HeldLease
from holdfast.worker.wire import AskedRelease, Raised
from tests.worker.doubles import FakeChild
from tests.worker.pool_driver import SETUP


@pytest.mark.parametrize(
    ("status", "type", "text", "signal", "exit_code"),
    [
        (-9, "SIGKILL", "its process was killed by SIGKILL", 9, None),
        (-6, "SIGABRT", "its process was killed by SIGABRT", 6, None),
        (-99, "signal 99", "its process was killed by signal 99", 99, None),
        (0, "Exit", "its process ended with exit code 0", None, 0),
        (3, "Exit", "its process ended with exit code 3", None, 3),
    ],
)
async def test_the_failure_of_a_dead_child(
    status: int, type: str, text: str, signal: int | None, exit_code: int | None
) -> None:
    child = FakeChild(SETUP, None, False)  # type: ignore[arg-type]
    child.status, child.tail = status, b"last \xff words"
    failure = crash_failure(PooledChild(child))
    child.board.close()
    assert (failure.kind, failure.type, failure.message) == (FailureKind.CRASH, type, text)
    assert (failure.signal, failure.exit_code) == (signal, exit_code)
    assert failure.trace == "last � words"


async def test_a_job_released_too_often_beside_timeouts_runs_alone() -> None:
    """Otherwise a long job would be restarted again and again, until it is charged."""
    child = FakeChild(SETUP, None, False)  # type: ignore[arg-type]
    dead = PooledChild(child)
    for number, (id_, releases) in enumerate([("hangs", 9), ("new", 0), ("often", 5)], 1):
        job = Job(id=id_, task="work", queue="default", releases=releases)
        held = HeldLease(Lease(job=job, token=1, lease_ms=1000), 0.0, "python")
        dead.calls[number] = PlacedCall(number, [held], gentle=False)
    late = Failure(kind=FailureKind.TIMEOUT)
    dead.timed_out, dead.kill_reason = {1: late}, "another job in its process ran past its timeout"
    child.status = -9
    child.board.running = lambda: dict.fromkeys(dead.calls, 0)  # type: ignore[method-assign]
    death = judge_calls(dead)
    child.board.close()
    assert (death.crashed, death.unstarted) == ([], [])
    assert {held.job.id: ending for jobs, ending in death.ended for held in jobs} == {
        "hangs": Raised(late),
        "new": AskedRelease(dead.kill_reason),
        "often": AskedRelease(dead.kill_reason, alone=True),
    }
