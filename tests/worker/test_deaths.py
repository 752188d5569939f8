"""How a child ended, in words and numbers."""

import pytest

from holdfast.core.model import Failure, FailureKind, Job, Lease
from holdfast.worker.calls import Placed, Seat
from holdfast.worker.deaths import _failure, after_death
from holdfast.worker.hand import Held
from holdfast.worker.wire import AskedRelease, Raised
from tests.worker.doubles import FakeLink
from tests.worker.staging import SETUP, Listening


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
    link = FakeLink(SETUP, None, False)  # type: ignore[arg-type]
    link.status, link.tail = status, b"last \xff words"
    failure = _failure(Seat(link))
    link.board.close()
    assert (failure.kind, failure.type, failure.message) == (FailureKind.CRASH, type, text)
    assert (failure.signal, failure.exit_code) == (signal, exit_code)
    assert failure.trace == "last � words"


async def test_whoever_stands_beside_timeouts_too_often_runs_alone() -> None:
    """Or one that takes long would be begun again and again, until it is charged for it."""
    link = FakeLink(SETUP, None, False)  # type: ignore[arg-type]
    seat, ears = Seat(link), Listening()
    for number, (id_, releases) in enumerate([("hangs", 9), ("new", 0), ("often", 5)], 1):
        job = Job(id=id_, task="work", queue="default", releases=releases)
        held = Held(Lease(job=job, token=1, lease_ms=1000), 0.0, "python")
        seat.calls[number] = Placed(number, [held], gentle=False)
    late = Failure(kind=FailureKind.TIMEOUT)
    seat.guilty, seat.ending = {1: late}, "a job beside it ran past its timeout"
    link.status = -9
    link.board.running = lambda: dict.fromkeys(seat.calls, 0)  # type: ignore[method-assign]
    assert after_death(seat, ears) == []
    link.board.close()
    assert ears.endings == {
        "hangs": Raised(late),
        "new": AskedRelease(seat.ending),
        "often": AskedRelease(seat.ending, alone=True),
    }
