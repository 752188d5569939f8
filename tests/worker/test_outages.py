"""The store is gone while jobs run: their verdicts are kept, and settled when it is back."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from holdfast.app.application import Holdfast
from holdfast.conformance.postgres_server import PrivatePostgres
from holdfast.core.model import Job, State
from holdfast.errors import EngineError, StorageFull
from holdfast.worker.supervisor import child_process
from tests.worker.live_workers import Place, until


@pytest.fixture(scope="module")
def own_server() -> Iterator[PrivatePostgres]:
    with PrivatePostgres() as server:
        yield server


@pytest.fixture
async def far_place(tmp_path: Path, own_server: PrivatePostgres) -> AsyncIterator[Place]:
    async with Holdfast(own_server.dsn) as app:
        place = Place(tmp_path, own_server.dsn, app)
        yield place
        await place.end()


async def persist(place: Place, *ids: str) -> list[Job]:
    """Wait until the server answers and all jobs are finished."""

    async def look() -> list[Job]:
        try:
            jobs = [await place.job(id_) for id_ in ids]
        except EngineError:
            return []
        return jobs if all(job.state.finished for job in jobs) else []

    return await until(look, f"{ids} to be settled")


async def test_postgresql_goes_away_and_comes_back(
    far_place: Place, own_server: PrivatePostgres
) -> None:
    """Jobs end, fail and are cancelled by their handlers while nothing can be written."""
    place = far_place
    process = await place.worker(concurrency=8)
    await place.enqueue("hold", *"abc")
    await place.enqueue("hold_async", "d")
    await place.enqueue("hold_then_fail", "e", max_attempts=1)
    await place.enqueue("hold_then_cancel", "f")
    await place.started(*"abcdef")
    await place.enqueue("note", "waiting", delay="100ms")
    await place.finished("waiting")
    own_server.kill()
    place.go()
    await until(lambda: len(place.journal("end")) == 7, "the runs to end")
    await until(lambda: "cannot store how " in place.stderr(), "the worker to notice")
    assert process.poll() is None
    await asyncio.to_thread(own_server.restart)
    jobs = await persist(place, *"abcdef")
    assert [job.state for job in jobs] == [
        *[State.DONE] * 4,
        *(State.DEAD, State.CANCELLED),
    ]
    assert {job.attempt for job in jobs} == {1}
    assert len(place.journal("start")) == 7
    await place.enqueue("note", "after")
    (after,) = await persist(place, "after")
    assert after.state is State.DONE


async def test_a_disk_that_is_full(
    small_disk: Path, fill_up: Callable[[int], None], tmp_path: Path
) -> None:
    """Running jobs are settled once, and others are leased when there is space again."""
    url = f"sqlite:///{small_disk}/work.db"
    async with Holdfast(url) as app:
        place = Place(tmp_path, url, app)
        try:
            process = await place.worker(concurrency=8)
            await place.enqueue("hold", *"abc")
            await place.enqueue("hold_then_fail", "d", max_attempts=1)
            await place.started(*"abcd")
            fill_up(0)
            with pytest.raises(StorageFull):
                await place.enqueue("note", "refused")
            place.go()
            await until(lambda: len(place.journal("end")) == 4, "the runs to end")
            (small_disk / "filler").unlink()
            jobs = await persist(place, *"abcd")
            assert [job.state for job in jobs] == [*[State.DONE] * 3, State.DEAD]
            assert {job.attempt for job in jobs} == {1}
            assert (len(place.journal("start")), process.poll()) == (4, None)
            await place.enqueue("note", "after")
            await persist(place, "after")
        finally:
            await place.end()


async def test_a_terminal_that_was_stopped_does_not_stop_the_worker() -> None:
    """No process reads the worker's standard error: output of handlers is dropped."""
    read, write = os.pipe()
    kept = os.dup(2)
    try:
        os.dup2(write, 2)
        for _ in range(40):
            await asyncio.wait_for(asyncio.to_thread(child_process.write_stderr, b"x" * 65_536), 60)
    finally:
        os.dup2(kept, 2)
        for descriptor in (kept, write):
            os.close(descriptor)
    with os.fdopen(read, "rb") as pipe:
        passed = pipe.read()
    assert passed == b"x" * len(passed) != b""
