"""EIO at the n-th call: no wrong answer, no raw error, and no partial write."""

import contextlib
import copy
from pathlib import Path
from random import Random

import pytest

from holdfast.conformance.faulty_disk import Call, FaultyDisk
from holdfast.core.model import NewJob
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.errors import EngineError, EngineUnavailable, OutcomeUnknown
from holdfast.testing.clock import ManualClock
from tests.crash.faults.conftest import OpenEngine
from torture.client_model import ClientModel

STRIKES = 25
READS = range(1, 150, 7)
"""The first are in the opening, the last in the reads of single jobs."""
STEPS_MAX = 400


@pytest.mark.parametrize("call", [Call.WRITE, Call.SYNC])
async def test_an_error_at_the_nth_call(
    tmp_path: Path, disk: FaultyDisk, clock: ManualClock, open_engine: OpenEngine, call: Call
) -> None:
    account = ClientModel("work", Random(1))
    engine = await open_engine(vfs=disk.name)
    await account.begin(engine)
    errors: list[type[EngineError | None]] = []
    rng = Random(2)
    for strike in range(1, STRIKES + 1):
        disk.faults.fail(call, nth=rng.randrange(1, 40))
        error = await work_until_struck(account, engine, clock, disk)
        disk.faults.mend()
        assert disk.faults.struck == strike
        errors.append(type(error))
        await account.check(engine, may_have_happened=isinstance(error, OutcomeUnknown))
        assert not account.faults, (strike, error, account.faults)
        if strike % 5 == 0:
            await check_after_cut(account, disk, tmp_path / f"cut-{strike}", clock)
    # A fault in a checkpoint is nobody's error: what it copies is safe in the log.
    assert {OutcomeUnknown} <= set(errors) <= {OutcomeUnknown, EngineUnavailable, type(None)}
    assert errors.count(type(None)) < STRIKES // 3


async def test_an_error_at_the_nth_read(
    disk: FaultyDisk, clock: ManualClock, open_engine: OpenEngine
) -> None:
    """A warm engine hardly reads, so it is opened anew each time, with the fault in waiting."""
    account = ClientModel("work", Random(1))
    engine = await open_engine(vfs=disk.name)
    await account.begin(engine)
    await work_until_error(account, engine, clock, steps=800)
    for nth in READS:
        await engine.close()
        disk.faults.fail(Call.READ, nth=nth)
        error = await open_or_error(engine)
        if error is None:
            error = await work_until_error(account, engine, clock, steps=5)
        if error is None:
            await read_until_error(account, engine)
        disk.faults.mend()
        await engine.open()
        await account.check(engine, may_have_happened=isinstance(error, OutcomeUnknown))
        assert not account.faults, (nth, error, account.faults)
    assert disk.faults.struck == len(READS)


@pytest.mark.parametrize("call", [Call.OPEN, Call.READ, Call.WRITE, Call.SYNC])
async def test_an_error_while_opening_a_new_file(
    tmp_path: Path, disk: FaultyDisk, clock: ManualClock, call: Call
) -> None:
    for nth in range(1, 200):
        engine = SQLiteEngine(tmp_path / f"{nth}.db", vfs=disk.name, clock=clock)
        struck = disk.faults.struck
        disk.faults.fail(call, nth=nth)
        error = await open_or_error(engine)
        disk.faults.mend()
        await engine.open()
        account = ClientModel("work", Random(nth))
        await account.begin(engine)
        assert await work_until_error(account, engine, clock, steps=3) is None
        await engine.close()
        if disk.faults.struck == struck:
            assert error is None
            return
    raise AssertionError(f"opening makes more than 200 calls of {call}")


@pytest.mark.parametrize("call", [Call.WRITE, Call.SYNC])
async def test_a_disk_that_stays_broken_for_a_while(
    tmp_path: Path, disk: FaultyDisk, clock: ManualClock, open_engine: OpenEngine, call: Call
) -> None:
    account = ClientModel("work", Random(2))
    engine = await open_engine(vfs=disk.name)
    await account.begin(engine)
    for number in range(10):
        disk.faults.fail(call, times=1_000_000)
        for _ in range(5):
            error = await work_until_error(account, engine, clock)
            assert isinstance(error, OutcomeUnknown | EngineUnavailable)
        disk.faults.mend()
        # Each failed call may have happened, and only the last is in the account.
        await account.check(engine, may_have_happened=True)
        account.faults.clear()
        assert await work_until_error(account, engine, clock, steps=10) is None
        assert not account.faults
        await check_after_cut(account, disk, tmp_path / f"cut-{number}", clock)


async def test_a_failed_sync_then_a_kill_then_a_power_cut(
    tmp_path: Path, clock: ManualClock, disk: FaultyDisk, open_engine: OpenEngine
) -> None:
    """The commit whose sync failed is found in the system's cache after a kill, but is not on the
    disk. Later commits must not depend on it."""
    engine = await open_engine(vfs=disk.name)
    await engine.enqueue([NewJob(id="before", task="noop")])
    disk.faults.fail(Call.SYNC)
    with pytest.raises(OutcomeUnknown):
        await engine.enqueue([NewJob(id="unknown", task="noop", payload=bytes(9000))])

    # The files as the next process finds them, with all that the disk under them has lost.
    cached = tmp_path / "cached"
    cached.mkdir()
    disk_again = FaultyDisk(f"{disk.name}-again", Random(0))
    for name in ("jobs.db", "jobs.db-wal"):
        (cached / name).write_bytes((tmp_path / name).read_bytes())
        disk_again.files[str(cached / name)] = copy.deepcopy(disk.files[str(tmp_path / name)])
    engine_again = await open_engine(cached / "jobs.db", vfs=disk_again.name)
    assert await engine_again.get("unknown") is not None
    await engine_again.enqueue([NewJob(id="after", task="noop")])

    home = write_image(disk_again, tmp_path / "cut")
    survivor = await open_engine(home / "jobs.db")
    for id_ in ("before", "unknown", "after"):
        assert await survivor.get(id_) is not None, id_


async def test_a_backup_that_fails_leaves_no_file(
    tmp_path: Path, disk: FaultyDisk, open_engine: OpenEngine
) -> None:
    engine = await open_engine(vfs=disk.name)
    await engine.enqueue([NewJob(id="one", task="noop")])
    target = tmp_path / "copy.db"
    for nth in range(1, 1000):
        disk.faults.fail(Call.READ, nth=nth)
        try:
            await engine.backup(target)
            break
        except EngineUnavailable:
            assert not target.exists()
        finally:
            disk.faults.mend()
    assert disk.faults.struck > 0
    copied = await open_engine(target)
    assert await copied.get("one") is not None


async def test_connections_are_dropped_after_an_error(
    disk: FaultyDisk, clock: ManualClock, open_engine: OpenEngine
) -> None:
    engine = await open_engine(vfs=disk.name)
    account = ClientModel("work", Random(3))
    await account.begin(engine)
    opened = disk.faults.calls[Call.OPEN]
    assert await work_until_error(account, engine, clock) is None
    assert disk.faults.calls[Call.OPEN] == opened
    disk.faults.fail(Call.SYNC)
    assert await work_until_error(account, engine, clock) is not None
    assert await work_until_error(account, engine, clock, steps=3) is None
    assert disk.faults.calls[Call.OPEN] > opened


async def work_until_struck(
    account: ClientModel, engine: SQLiteEngine, clock: ManualClock, disk: FaultyDisk
) -> EngineError | None:
    struck = disk.faults.struck
    for _ in range(STEPS_MAX):
        error = await work_until_error(account, engine, clock, steps=1)
        if error is not None or disk.faults.struck > struck:
            return error
    raise AssertionError(f"no fault in {STEPS_MAX} steps")


async def work_until_error(
    account: ClientModel, engine: SQLiteEngine, clock: ManualClock, *, steps: int = 50
) -> EngineError | None:
    for _ in range(steps):
        try:
            await account.step(engine)
        except EngineError as error:
            return error
        clock.advance(1)
    return None


async def read_until_error(account: ClientModel, engine: SQLiteEngine) -> None:
    with contextlib.suppress(EngineUnavailable):
        for id_ in account.known:
            await engine.get(id_)


async def open_or_error(engine: SQLiteEngine) -> EngineError | None:
    try:
        await engine.open()
    except (OutcomeUnknown, EngineUnavailable) as error:
        return error
    return None


async def check_after_cut(
    account: ClientModel, disk: FaultyDisk, home: Path, clock: ManualClock
) -> None:
    """Calls answered since the errors must be durable: a sync that fails loses its writes for
    good, so a later sync that succeeds proves nothing about them."""
    engine = SQLiteEngine(write_image(disk, home) / "jobs.db", clock=clock)
    await engine.open()
    later = copy.deepcopy(account)
    await later.check(engine, may_have_happened=False)
    await engine.close()
    assert not later.faults


def write_image(disk: FaultyDisk, home: Path) -> Path:
    home.mkdir()
    for name, content in disk.image(Random(0)).items():
        (home / name).write_bytes(content)
    return home
