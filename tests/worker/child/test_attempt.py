"""From a payload to an ending: every way a handler can end, sync and async alike."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.core import bounds, codec
from holdfast.core.model import FailureKind, NewJob
from holdfast.worker.child.attempt import Attempt
from holdfast.worker.child.context import Context
from holdfast.worker.outcomes import Bury, Cancelled, HandlerOutcome, Release, Retry
from holdfast.worker.wire import (
    AskedBury,
    AskedCancel,
    AskedRelease,
    AskedRetry,
    Ending,
    NoteUpdate,
    Raised,
    Returned,
)
from tests.worker.child_driver import given_job
from tests.worker.sample_handlers import both, handler


def run(attempt: Attempt) -> tuple[Ending, ...]:
    if attempt.handler.is_async:
        return asyncio.run(attempt.run_async())
    return attempt.run()


def end_both(function: Callable[..., Any], payload: Any = None, **fields: Any) -> Ending:
    """The ending, which is the same for functions and coroutines."""
    endings = [
        run(Attempt(handler(each, name="sample", **fields), (given_job(payload),)))[0]
        for each in both(function)
    ]
    bare = [_without_trace(ending) for ending in endings]
    assert bare[0] == bare[1]
    return endings[0]


def _without_trace(ending: Ending) -> object:
    failure = getattr(ending, "failure", None)
    if failure is None:
        return ending
    return type(ending), failure.kind, failure.type, failure.message, getattr(ending, "fatal", None)


def raising(error: BaseException) -> Callable[[], None]:
    def sample() -> None:
        raise error

    return sample


@pytest.mark.parametrize("value", [0, "text", [1, 2], {"a": None}, False, ""])
def test_the_returned_value_is_the_result(value: Any) -> None:
    assert end_both(lambda: value) == Returned(codec.encode(value))


def test_arguments_by_name_by_place_and_none() -> None:
    def sample(a: int = 1, b: int = 2) -> list[int]:
        return [a, b]

    assert end_both(sample, {"b": 5}) == Returned(b"[1,5]")
    assert end_both(sample, [5]) == Returned(b"[5,2]")
    assert end_both(sample) == Returned(b"[1,2]")


@pytest.mark.parametrize("payload", [b"{", b"", b"5", b'"text"', b"\xff", b"[" * 100_000])
def test_a_payload_that_does_not_fit_is_fatal_and_named(payload: bytes) -> None:
    ending = end_both(lambda: None, payload)
    assert isinstance(ending, Raised)
    assert ending.fatal
    assert "does not fit task sample" in ending.failure.message


@pytest.mark.parametrize("value", [object(), {object()}, float("nan"), "\ud800"])
def test_a_result_that_cannot_be_written_is_fatal(value: Any) -> None:
    ending = end_both(lambda: value)
    assert isinstance(ending, Raised)
    assert ending.fatal
    assert "result of task sample cannot be stored" in ending.failure.message


def test_a_result_over_the_bound_is_fatal() -> None:
    ending = end_both(lambda: "x" * bounds.RESULT_MAX)
    assert isinstance(ending, Raised)
    assert ending.fatal
    assert str(bounds.RESULT_MAX) in ending.failure.message
    assert isinstance(end_both(lambda: "x" * (bounds.RESULT_MAX - 2)), Returned)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("bad"), "ValueError"),
        (KeyError("x"), "KeyError"),
        (SystemExit(3), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (TimeoutError("theirs"), "TimeoutError"),
        (asyncio.CancelledError(), "asyncio.exceptions.CancelledError"),
        (ExceptionGroup("several", [ValueError("one")]), "ExceptionGroup"),
    ],
)
def test_an_exception_is_a_failure(error: BaseException, kind: str) -> None:
    ending = end_both(raising(error))
    assert isinstance(ending, Raised)
    assert (ending.failure.kind, ending.failure.type) == (FailureKind.ERROR, kind)
    assert not ending.fatal


@pytest.mark.parametrize(
    ("error", "fields", "fatal"),
    [
        (ValueError(), {}, False),
        (ValueError(), {"give_up_on": (ValueError,)}, True),
        (KeyError(), {"give_up_on": (LookupError,)}, True),
        (ValueError(), {"retry_on": (KeyError,)}, True),
        (KeyError(), {"retry_on": (KeyError,)}, False),
        (KeyError(), {"retry_on": (KeyError,), "give_up_on": (KeyError,)}, True),
    ],
)
def test_the_task_decides_which_errors_are_retried(
    error: Exception, fields: dict[str, Any], fatal: bool
) -> None:
    ending = end_both(raising(error), **fields)
    assert isinstance(ending, Raised)
    assert ending.fatal is fatal


@pytest.mark.parametrize(
    ("outcome", "kind", "fields"),
    [
        (Retry("later"), AskedRetry, {"delay_ms": None}),
        (Retry("later", after="10s"), AskedRetry, {"delay_ms": 10_000}),
        (Bury("never"), AskedBury, {}),
        (Release("not now", after=2), AskedRelease, {"text": "not now", "delay_ms": 2_000}),
        (Cancelled("as asked"), AskedCancel, {"text": "as asked"}),
        (Release("\ud800\0"), AskedRelease, {"text": "\ufffd\ufffd", "delay_ms": 0}),
        (Cancelled("\ud800"), AskedCancel, {"text": "\ufffd"}),
    ],
)
def test_outcomes(outcome: HandlerOutcome, kind: type, fields: dict[str, Any]) -> None:
    ending = end_both(raising(outcome))
    assert isinstance(ending, kind)
    assert {name: getattr(ending, name) for name in fields} == fields
    msgspec.msgpack.encode(ending)
    failure = getattr(ending, "failure", None)
    if failure is not None:
        assert (failure.type, failure.message) == (type(outcome).__name__, str(outcome))


def test_a_coroutine_that_asks_for_more_time_gets_it() -> None:
    left_s: list[float] = []

    async def sample(ctx: Context) -> None:
        ctx.more_time("1h")
        await asyncio.sleep(0)
        assert attempt.timer is not None
        loop, limit = attempt.timer
        left_s.append((limit.when() or 0) - loop.time())

    attempt = Attempt(handler(sample), (given_job(),), timeout_ms=60_000)
    (ending,) = run(attempt)
    assert isinstance(ending, Returned), ending
    assert 3_500 < left_s[0] <= 3_600


def test_our_timeout_is_distinguished_from_the_handlers_own() -> None:
    async def sample() -> None:
        await asyncio.Event().wait()

    (ending,) = run(Attempt(handler(sample), (given_job(),), timeout_ms=10))
    assert isinstance(ending, Raised)
    assert ending.failure.kind is FailureKind.TIMEOUT
    assert "0.01 s" in ending.failure.message
    assert "Event().wait()" in ending.failure.trace
    (ending,) = run(
        Attempt(handler(both(raising(TimeoutError()))[1]), (given_job(),), timeout_ms=60_000)
    )
    assert isinstance(ending, Raised)
    assert ending.failure.kind is FailureKind.ERROR


@pytest.mark.parametrize("makes", [ValueError("interrupted"), Retry("later")])
def test_a_handler_may_react_to_its_timeout(makes: Exception) -> None:
    async def sample() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise makes from None

    (ending,) = run(Attempt(handler(sample), (given_job(),), timeout_ms=10))
    if isinstance(makes, Retry):
        assert isinstance(ending, AskedRetry)
    else:
        assert isinstance(ending, Raised)
        assert ending.failure.kind is FailureKind.TIMEOUT
        assert "ValueError: interrupted" in ending.failure.trace


async def test_cancel_ends_a_coroutine() -> None:
    begun = asyncio.Event()

    async def sample() -> None:
        begun.set()
        await asyncio.Event().wait()

    attempt = Attempt(handler(sample), (given_job(),))
    running = asyncio.create_task(attempt.run_async())
    await begun.wait()
    attempt.cancel()
    assert isinstance((await running)[0], AskedCancel)


async def test_a_coroutine_may_finish_in_spite_of_a_cancel() -> None:
    begun = asyncio.Event()

    async def sample() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "finished all the same"
        return ""

    attempt = Attempt(handler(sample), (given_job(),))
    running = asyncio.create_task(attempt.run_async())
    await begun.wait()
    attempt.cancel()
    assert await running == (Returned(b'"finished all the same"'),)


async def test_a_cancellation_from_elsewhere_is_passed_on() -> None:
    attempt = Attempt(handler(both(lambda: None)[1]), (given_job(),))
    running = asyncio.create_task(attempt.run_async())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_a_call_cancelled_before_it_starts_does_not_run() -> None:
    for function in both(lambda: pytest.fail("it ran")):
        attempt = Attempt(handler(function), (given_job(),))
        attempt.cancel(lost=True)
        assert isinstance(run(attempt)[0], AskedCancel)


def test_context_output_and_follow_ups_come_with_the_ending() -> None:
    follow_up = NewJob(id="next", task="t")

    def sample(fail: bool, ctx: Context) -> None:
        ctx.log("hello", 5)
        ctx.then(follow_up)
        ctx.progress(0.5)
        ctx.checkpoint([1])
        if fail:
            raise ValueError

    attempt = Attempt(handler(sample), (given_job({"fail": False}),), number=3)
    assert attempt.run() == (Returned(None, (follow_up,), b"hello 5\n"),)
    assert attempt.take_notes() == [NoteUpdate(3, 0, 0.5, b"[1]")]
    assert attempt.take_notes() == []
    (ending,) = Attempt(handler(sample), (given_job({"fail": True}),)).run()
    assert isinstance(ending, Raised)
    assert ending.output == b"hello 5\n"


def batch_of(function: Callable[..., Any], *payloads: Any) -> tuple[Ending, ...]:
    items = tuple(given_job(payload, id=f"j{index}") for index, payload in enumerate(payloads))
    return Attempt(handler(function, name="sample", batch=10), items).run()


def test_a_batch_is_called_once_with_all() -> None:
    calls: list[list[int]] = []
    assert batch_of(calls.append, 1, 2, 3) == (Returned(),) * 3
    assert calls == [[1, 2, 3]]


def test_a_batch_answers_for_each_job() -> None:
    def sample(values: list[int]) -> list[Any]:
        return [5, None, Retry("again", after=1), ValueError("bad"), Bury("no")]

    endings = batch_of(sample, 1, 2, 3, 4, 5)
    assert [type(ending) for ending in endings] == [
        Returned,
        Returned,
        AskedRetry,
        Raised,
        AskedBury,
    ]
    assert endings[0] == Returned(b"5")


def test_a_bad_payload_in_a_batch_fails_only_its_own_job() -> None:
    def sample(values: list[int], contexts: list[Context]) -> list[str]:
        return [f"{context.id}={value}" for value, context in zip(values, contexts, strict=True)]

    first, second, third = batch_of(sample, 1, "bad", 3)
    assert (first, third) == (Returned(b'"j0=1"'), Returned(b'"j2=3"'))
    assert isinstance(second, Raised)
    assert second.fatal
    assert all(isinstance(one, Raised) for one in batch_of(sample, "bad", "bad"))


def test_a_batch_that_raises_fails_as_a_whole() -> None:
    def sample(values: list[int]) -> None:
        raise ValueError(len(values))

    endings = batch_of(sample, 1, 2)
    assert [one.failure.message for one in endings if isinstance(one, Raised)] == ["2", "2"]


@pytest.mark.parametrize("answer", [[1], [1, 2, 3], "ab", 5, {"a": 1}])
def test_a_batch_that_returns_the_wrong_number_is_buried(answer: Any) -> None:
    endings = batch_of(lambda _: answer, 1, 2)
    assert len(endings) == 2
    for ending in endings:
        assert isinstance(ending, AskedBury)
        assert "one value for each" in ending.failure.message


def test_a_failure_leaves_no_reference_cycle() -> None:
    class Payload:
        pass

    seen: list[weakref.ref[Payload]] = []

    def sample() -> None:
        held = Payload()
        seen.append(weakref.ref(held))
        raise ValueError("bad")

    gc.disable()
    try:
        end_both(sample)
        assert [one() for one in seen] == [None, None]
    finally:
        gc.enable()
