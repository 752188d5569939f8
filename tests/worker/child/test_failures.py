"""Exceptions are hostile: each becomes a bounded failure, whatever it contains."""

import msgspec
import pytest

from holdfast.core import bounds
from holdfast.core.model import Failure
from holdfast.worker.child.attempt import Attempt, failure_of, plain_failure
from holdfast.worker.outcomes import Bury, Retry
from holdfast.worker.wire import Raised
from tests.worker.child_driver import given_job
from tests.worker.sample_handlers import handler


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class Unwell(Exception):
    def __getattribute__(self, name: str) -> object:
        if name == "__notes__":
            raise RuntimeError("no")
        return super().__getattribute__(name)


def caught(error: BaseException) -> Failure:
    def sample() -> None:
        raise error

    (ending,) = Attempt(handler(sample), (given_job(),)).run()
    assert isinstance(ending, Raised)
    # It can be sent and stored.
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(ending.failure), type=Failure)
    assert sent == ending.failure
    return sent


@pytest.mark.parametrize(
    "error",
    [
        Unprintable(),
        Unwell("x"),
        ValueError("a\0b\ud800c"),
        ValueError("x" * 10_000_000),
        ValueError(*["é" * 100_000] * 5),
        type("é" * 10_000, (Exception,), {})("odd name"),
        ExceptionGroup("deep", [ExceptionGroup("er", [ValueError("x" * 100_000)] * 50)]),
    ],
)
def test_texts_are_bounded_and_storable(error: BaseException) -> None:
    failure = caught(error)
    assert 0 < len(failure.type) <= bounds.NAME_BYTES_MAX
    assert len(failure.message) <= bounds.ERROR_TEXT_MAX
    assert len(failure.trace) <= bounds.ERROR_TEXT_MAX


def test_trace_begins_in_the_handler() -> None:
    trace = caught(ValueError("bad")).trace
    assert "raise error" in trace
    assert "holdfast/worker/" not in trace
    assert trace.startswith("Traceback")
    assert trace.endswith("ValueError: bad\n")


def test_endless_recursion_has_a_bounded_trace() -> None:
    def down(depth: int) -> int:
        return up(depth) + 1

    def up(depth: int) -> int:
        return down(depth) + 1

    (ending,) = Attempt(handler(down), (given_job([0]),)).run()
    assert isinstance(ending, Raised)
    assert ending.failure.type == "RecursionError"
    assert "return down(depth)" in ending.failure.trace


def test_an_error_that_is_its_own_cause() -> None:
    error = ValueError("around")
    other = KeyError("about")
    error.__cause__, other.__cause__ = other, error
    assert "around" in caught(error).message


def test_an_outcome_has_a_trace_only_of_its_cause() -> None:
    assert failure_of(Bury("no")).trace == ""
    retry = Retry("again")
    retry.__cause__ = ConnectionError("refused")
    assert "ConnectionError: refused" in failure_of(retry).trace


def test_names_of_types() -> None:
    assert failure_of(ValueError()).type == "ValueError"
    assert failure_of(msgspec.ValidationError()).type == "msgspec.ValidationError"
    assert failure_of(Retry()).type == "Retry"
    assert plain_failure("A", "b\0").message == "b\ufffd"
