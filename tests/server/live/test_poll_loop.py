"""The loop that polls for all streams: it runs while there are any, and an act wakes it."""

import asyncio

import pytest

from holdfast.server.live.poll_loop import PollLoop


class Polls:
    """Counts its polls."""

    def __init__(self) -> None:
        self.count = 0
        self.polled = asyncio.Event()
        self.error: Exception | None = None

    async def poll(self) -> None:
        self.count += 1
        self.polled.set()
        if self.error is not None:
            raise self.error

    async def next(self) -> None:
        self.polled.clear()
        await self.polled.wait()


async def test_the_loop_runs_while_there_are_streams() -> None:
    loop, one, two = PollLoop(poll_s=0.001), Polls(), Polls()
    for polls in (one, one, two):
        loop.join(polls.poll)
    task = loop.task
    assert task is not None
    await one.next()
    await two.next()
    loop.leave(one.poll)
    await one.next()
    loop.leave(one.poll)
    await two.next()
    before = one.count
    await two.next()
    assert one.count == before
    loop.leave(two.poll)
    assert loop.task is None
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    loop, bad, good = PollLoop(poll_s=0.001), Polls(), Polls()
    bad.error = RuntimeError("broken")
    loop.join(bad.poll)
    loop.join(good.poll)
    await good.next()
    await bad.next()
    await good.next()
    assert "failed unexpectedly" in caplog.text
    loop.leave(bad.poll)
    loop.leave(good.poll)


async def test_an_act_wakes_the_loop() -> None:
    loop, polls = PollLoop(poll_s=3_600), Polls()
    loop.join(polls.poll)
    loop.wake()
    await polls.next()
    loop.wake()
    loop.wake()
    await polls.next()
    assert polls.count == 2
    loop.leave(polls.poll)


async def test_without_an_interval_only_the_caller_polls() -> None:
    loop, polls = PollLoop(poll_s=None), Polls()
    loop.join(polls.poll)
    loop.wake()
    assert loop.task is None
    loop.leave(polls.poll)
