"""How a child ended, in words and numbers."""

import pytest

from holdfast.core.model import FailureKind
from holdfast.worker.calls import Seat
from holdfast.worker.deaths import _failure
from tests.worker.doubles import FakeLink
from tests.worker.staging import SETUP


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
