"""Events about the calls of an engine; reporting never affects a call."""

import logging

import pytest

from holdfast.core.model import JobFilter, LeaseRequest, NewJob, Record, Renewal
from holdfast.core.verdict import Cancel, Complete, Settlement
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.observed import Observed
from holdfast.errors import EngineClosed
from holdfast.events import EngineCalled, Listeners, ProcessEvent


class EventRecorder:
    def __init__(self) -> None:
        self.calls: list[EngineCalled] = []

    def __call__(self, event: ProcessEvent) -> None:
        assert isinstance(event, EngineCalled)
        self.calls.append(event)


async def test_answers_are_counted_by_queue_and_outcome() -> None:
    recorder = EventRecorder()
    engine = Observed(MemoryEngine(), recorder)
    await engine.open()
    jobs = [NewJob(id="a", task="t"), NewJob(id="b", task="t", queue="nowhere")]
    receipts = await engine.enqueue([*jobs, jobs[0]])
    assert [receipt.id for receipt in receipts] == ["a", "b", "a"]
    [lease] = await engine.lease(LeaseRequest(queues=("default",)))
    await engine.renew([Renewal(lease=lease)])
    await engine.settle([Settlement(lease=lease, verdict=Complete())])
    await engine.renew([Renewal(lease=lease)])
    await engine.amend(JobFilter(), Cancel(), limit=10)
    await engine.save([Record(kind="x", key="k", value=b"v")])
    calls = [(call.verb, call.outcomes) for call in recorder.calls]
    assert calls == [
        ("open", {}),
        ("enqueue", {"default": {"new": 1, "duplicate": 1}, "nowhere": {"unknown_queue": 1}}),
        ("lease", {"default": {"leased": 1}}),
        ("renew", {"default": {"renewed": 1}}),
        ("settle", {"default": {"complete": 1}}),
        ("renew", {"default": {"lost": 1}}),
        ("amend", {}),
        ("save", {"": {"saved": 1}}),
    ]
    assert all(call.duration_ms >= 0 and not call.error for call in recorder.calls)


async def test_an_error_is_reported_by_its_code_and_still_raised() -> None:
    recorder = EventRecorder()
    engine = Observed(MemoryEngine(), recorder)
    with pytest.raises(EngineClosed):
        await engine.get("a")
    assert [(call.verb, call.error) for call in recorder.calls] == [("get", "closed")]


async def test_a_failing_listener_harms_neither_the_call_nor_other_listeners(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = EventRecorder()

    def failing(event: ProcessEvent) -> None:
        raise RuntimeError("failing")

    engine = Observed(MemoryEngine(), Listeners(failing, recorder))
    with caplog.at_level(logging.ERROR, logger="holdfast.events"):
        await engine.open()
        assert await engine.get("a") is None
    assert [call.verb for call in recorder.calls] == ["open", "get"]
    assert "a listener failed on EngineCalled" in caplog.text


def test_a_listener_can_be_removed() -> None:
    recorder = EventRecorder()
    listeners = Listeners(recorder)
    listeners.remove(recorder)
    listeners(EngineCalled(verb="get", duration_ms=0))
    listeners.add(recorder)
    listeners(EngineCalled(verb="find", duration_ms=0))
    assert [call.verb for call in recorder.calls] == ["find"]
