"""Pipes come and go while they are looked at."""

import asyncio
import os

from holdfast.worker.pipes import Pipes
from tests.worker.running import until


async def test_each_is_heard_of_until_it_is_closed() -> None:
    heard: list[str] = []
    pipes: Pipes[str] = Pipes(asyncio.get_running_loop(), heard.append)
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


async def test_one_may_close_another_in_the_same_look() -> None:
    heard: list[int] = []

    def close_all(source: int) -> None:
        heard.append(source)
        for pipe in sources:
            pipes.close(pipe)

    pipes: Pipes[int] = Pipes(asyncio.get_running_loop(), close_all)
    ends = [os.pipe() for _ in range(3)]
    sources = [source for source, _ in ends]
    for source, sink in ends:
        pipes.watch(source, source)
        os.close(sink)
    await until(lambda: heard)
    await asyncio.sleep(0)
    assert len(heard) == 1
