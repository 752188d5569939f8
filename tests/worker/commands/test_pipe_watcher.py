"""Pipes are added and closed while they are watched."""

import asyncio
import os

from holdfast.worker.commands.runner import PipeWatcher
from tests.worker.live_workers import until


async def test_a_pipe_is_watched_until_it_is_closed() -> None:
    heard: list[str] = []
    pipes: PipeWatcher[str] = PipeWatcher(asyncio.get_running_loop(), heard.append)
    source, sink = os.pipe()
    pipes.watch(source, "a")
    os.write(sink, b"x")
    await until(lambda: heard)
    assert set(heard) == {"a"}
    os.read(source, 10)
    heard.clear()
    os.close(sink)
    await until(lambda: heard)
    pipes.close(source)
    count = len(heard)
    await asyncio.sleep(0)
    assert len(heard) == count


async def test_one_owner_may_close_anothers_pipe() -> None:
    heard: list[int] = []

    def close_all(source: int) -> None:
        heard.append(source)
        for pipe in sources:
            pipes.close(pipe)

    pipes: PipeWatcher[int] = PipeWatcher(asyncio.get_running_loop(), close_all)
    ends = [os.pipe() for _ in range(3)]
    sources = [source for source, _ in ends]
    for source, sink in ends:
        pipes.watch(source, source)
        os.close(sink)
    await until(lambda: heard)
    await asyncio.sleep(0)
    assert len(heard) == 1
