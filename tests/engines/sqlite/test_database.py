"""Lock timeouts, cancelled callers, different boot clocks and the length of the log."""

import asyncio
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.core.model import LeaseRequest, NewJob
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.sqlite import SQLiteEngine, connection, database
from holdfast.errors import EngineUnavailable, SchemaMismatch
from holdfast.testing.clock import ManualClock
from tests.engines.sqlite.conftest import OpenEngine

REQUEST = LeaseRequest(queues=("default",), limit=10)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file, like a process that was stopped inside a transaction."""
    descriptor = os.open(f"{path}-lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


async def test_open_can_be_repeated_after_a_lock_timeout(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, open_engine: OpenEngine
) -> None:
    other = await open_engine()
    engine = SQLiteEngine(path, clock=clock)
    before = set(threading.enumerate())
    with locked(path), monkeypatch.context() as patch:
        patch.setattr(database, "START_TIMEOUT_S", 0.01)
        for _ in range(2):
            with pytest.raises(EngineUnavailable, match="nothing was changed"):
                await engine.open()
        hanging = [
            one for one in threading.enumerate() if one not in before and "sqlite" in one.name
        ]
    assert len(hanging) == 2
    for thread in hanging:
        # Each closes what it has opened as soon as it obtains the lock.
        await asyncio.to_thread(thread.join)
    await engine.open()
    await engine.enqueue([NewJob(id="a", task="t")])
    await other.enqueue([NewJob(id="b", task="t")])
    await engine.close()


async def test_close_while_a_call_waits_for_the_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch, open_engine: OpenEngine
) -> None:
    engine = await open_engine()
    with locked(path), monkeypatch.context() as patch:
        patch.setattr(database, "START_TIMEOUT_S", 0.05)
        with pytest.raises(EngineUnavailable, match="nothing was changed"):
            await engine.enqueue([NewJob(id="a", task="t")])
        await engine.close()
        hanging = engine._writer._thread
        assert hanging.is_alive()
    await asyncio.to_thread(hanging.join)
    await engine.open()
    await engine.enqueue([NewJob(id="b", task="t")])
    assert await engine.get("a") is None


async def test_leases_are_returned_if_the_caller_is_cancelled_with_the_result_ready(
    monkeypatch: pytest.MonkeyPatch, open_engine: OpenEngine
) -> None:
    engine = await open_engine()
    await engine.enqueue([NewJob(id="a", task="t")])
    resolve = database._resolve

    def resolve_and_cancel(*given: Any) -> None:
        resolve(*given)
        caller.cancel()

    monkeypatch.setattr(database, "_resolve", resolve_and_cancel)
    caller = asyncio.create_task(engine.lease(REQUEST))
    with pytest.raises(asyncio.CancelledError):
        await caller
    monkeypatch.undo()
    await engine._returns.ended()
    (lease,) = await engine.lease(REQUEST)
    assert (lease.id, lease.job.attempt, lease.job.releases) == ("a", 1, 0)


async def test_close_waits_until_leases_are_returned(
    monkeypatch: pytest.MonkeyPatch, open_engine: OpenEngine
) -> None:
    engine = await open_engine()
    await engine.enqueue([NewJob(id="a", task="t")])
    leases = await engine.lease(REQUEST)
    engine._release((leases, None))  # type: ignore[arg-type]
    await engine.close()
    await engine.open()
    assert [lease.id for lease in await engine.lease(REQUEST)] == ["a"]


async def test_another_boot_clock_is_refused_while_the_file_is_in_use(
    clock: ManualClock, open_engine: OpenEngine
) -> None:
    engine = await open_engine()
    await engine.enqueue([NewJob(id="a", task="t")])
    (lease,) = await engine.lease(REQUEST)
    other_clock = ManualClock()
    other_clock.reboot()
    with pytest.raises(EngineUnavailable, match="time namespace"):
        await open_engine(clock=other_clock)
    # No lease has ended, and the engine still works.
    assert (await engine.overdue(10)).leases == ()
    assert await engine.settle([Settlement(lease=lease, verdict=Complete())]) == [Outcome.SETTLED]
    await engine.close()
    other = await open_engine(clock=other_clock)
    await other.enqueue([NewJob(id="b", task="t")])
    with pytest.raises(EngineUnavailable, match="time namespace"):
        await engine.open()


async def test_a_boot_id_that_changes_under_an_open_engine_is_refused(
    clock: ManualClock, open_engine: OpenEngine, path: Path
) -> None:
    engine = await open_engine()
    own = apsw.Connection(str(path))
    own.execute("UPDATE hf_meta SET boot = 'another'")
    own.close()
    with pytest.raises(EngineUnavailable, match="time namespace"):
        await engine.enqueue([NewJob(id="a", task="t")])


async def test_calls_fail_after_a_newer_version_migrated_the_file(
    open_engine: OpenEngine, path: Path
) -> None:
    engine = await open_engine()
    newer = apsw.Connection(str(path))
    newer.execute("UPDATE hf_meta SET schema = 99")
    for call in (engine.enqueue([NewJob(id="a", task="t")]), engine.get("a")):
        with pytest.raises(SchemaMismatch, match="99"):
            await call
    newer.execute("BEGIN IMMEDIATE")
    with pytest.raises(SchemaMismatch, match="99"):
        engine.within(newer).enqueue([NewJob(id="a", task="t")])
    assert newer.execute("SELECT count(*) FROM hf_jobs").get == 0
    newer.close()


async def test_overlapping_readers_do_not_make_the_log_grow(
    path: Path, monkeypatch: pytest.MonkeyPatch, open_engine: OpenEngine
) -> None:
    monkeypatch.setattr(connection, "WAL_PAGES", 40)
    monkeypatch.setattr(connection, "RESTART_MS", 5_000)
    engine = await open_engine()
    readers = [apsw.Connection(str(path)) for _ in range(2)]
    for reader in readers:
        reader.set_busy_timeout(5_000)

    def begin(reader: apsw.Connection) -> None:
        if reader.in_transaction:
            reader.execute("COMMIT")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM hf_meta").fetchall()

    ended = asyncio.Event()

    async def read_in_turn() -> None:
        # One begins before the other ends, so there is always a reader.
        while not ended.is_set():
            for reader in readers:
                begin(reader)
                await asyncio.sleep(0.001)

    reading = asyncio.create_task(read_in_turn())
    peak = 0
    for n in range(60):
        await engine.enqueue([NewJob(id=f"job-{n}", task="t", payload=bytes(40_000))])
        peak = max(peak, engine._database.wal.pages)
    ended.set()
    await reading
    for reader in readers:
        reader.close()
    assert peak < 200, "600 pages were written"
