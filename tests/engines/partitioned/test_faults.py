"""Real stores that go wrong: deleted, replaced, damaged, locked, full, killed; and come back.

Every time the other partitions go on, what was acknowledged is there in the end, and it is there
once.
"""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.conformance.contract.cases import a_job, from_default
from holdfast.conformance.postgres_server import PrivatePostgres
from holdfast.core.model import JobFilter, LeaseRequest, Status
from holdfast.core.partitions import home_of
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.base import Engine
from holdfast.engines.partitioned import PartitionedEngine
from holdfast.engines.registry import open_engine
from holdfast.engines.sqlite import SQLiteEngine, connection
from holdfast.errors import ConfigError, EngineError, EngineUnavailable, StorageFull
from tests.engines.partitioned.fragile import names_at

NAMES = ("a", "b", "c")
SECOND = 1

pytestmark = pytest.mark.anyio


async def soon(seconds: float) -> None:
    """A short back-off."""
    await asyncio.sleep(min(seconds, 0.01))


def over(*engines: Engine) -> PartitionedEngine:
    return PartitionedEngine(list(zip(NAMES, engines, strict=False)), sleep=soon)


def files(folder: Path) -> PartitionedEngine:
    return over(*(SQLiteEngine(folder / f"{name}.db") for name in NAMES))


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[PartitionedEngine]:
    engine = files(tmp_path)
    await engine.open()
    yield engine
    await engine.close()


def ids_at(place: int, count: int, prefix: str) -> list[str]:
    return names_at(place, count, home_of, prefix)


async def fill(engine: Engine, prefix: str, count: int = 5) -> list[str]:
    """So many acknowledged jobs in each partition that takes them."""
    ids = [id_ for place in range(3) for id_ in ids_at(place, count, prefix)]
    receipts = await engine.enqueue([a_job(id_) for id_ in ids])
    return [receipt.id for receipt in receipts if receipt.status is Status.NEW]


async def work_off(engine: Engine) -> list[str]:
    done: list[str] = []
    while leases := await engine.lease(from_default(100)):
        outcomes = await engine.settle(
            [Settlement(lease=lease, verdict=Complete()) for lease in leases]
        )
        assert set(outcomes) == {Outcome.SETTLED}
        done += [lease.id for lease in leases]
    return done


async def is_out(engine: PartitionedEngine, place: int = SECOND) -> None:
    """Calls find it out; until then they may fail, but nothing else may."""
    while engine.partitions()[place].out_ms is None:
        with contextlib.suppress(EngineError):
            await engine.enqueue([a_job(ids_at(place, 1, "probe")[0])])


async def is_back(engine: PartitionedEngine, place: int = SECOND) -> None:
    try:
        async with asyncio.timeout(30):
            while engine.partitions()[place].out_ms is not None:
                await engine._members.changed.wait()
    except TimeoutError:
        pytest.fail(f"it is still out: {engine.partitions()[place]}")


async def wait_for_text(engine: PartitionedEngine, text: str) -> None:
    """Wait until the partition was tried again and reports this reason."""
    async with asyncio.timeout(30):
        while text not in engine.partitions()[SECOND].text:
            await soon(1)


async def go_on(engine: PartitionedEngine) -> list[str]:
    """With one of three gone the others take jobs and give them."""
    ids = await fill(engine, "meanwhile")
    assert sorted({home_of(id_, 3) for id_ in ids}) == [0, 2]
    minted = [engine.mint() for _ in range(10)]
    receipts = await engine.enqueue([a_job(id_) for id_ in minted])
    assert {receipt.status for receipt in receipts} == {Status.NEW}
    return [*ids, *minted]


async def test_a_deleted_file_is_not_recreated(tmp_path: Path, engine: PartitionedEngine) -> None:
    before = await fill(engine, "before")
    saved = tmp_path / "saved"
    await SQLiteEngine.backup(engine._members.all[SECOND].engine, saved)  # type: ignore[arg-type]
    for path in tmp_path.glob("b.db*"):
        path.unlink(missing_ok=True)
    await is_out(engine)
    meanwhile = await go_on(engine)
    await wait_for_text(engine, "restore it from a backup")
    assert any("b is shut out" in text for text in (await engine.examine()).trouble)
    assert not (tmp_path / "b.db").exists()
    saved.rename(tmp_path / "b.db")
    await is_back(engine)
    assert sorted(await work_off(engine)) == sorted([*before, *meanwhile])


async def test_a_file_of_another_partition_set_is_not_used(
    tmp_path: Path, engine: PartitionedEngine
) -> None:
    before = await fill(engine, "before")
    folder = tmp_path / "other"
    folder.mkdir()
    other = files(folder)
    await other.open()
    await fill(other, "strange")
    await other.close()
    whole = tmp_path / "whole"
    await SQLiteEngine.backup(engine._members.all[SECOND].engine, whole)  # type: ignore[arg-type]
    for ending in ("-wal", "-shm"):
        (tmp_path / f"b.db{ending}").unlink(missing_ok=True)
    (folder / "b.db").rename(tmp_path / "b.db")
    await is_out(engine)
    meanwhile = await go_on(engine)
    await wait_for_text(engine, "another set")
    found = await engine.find(JobFilter(search="strange"), limit=100)
    assert found.jobs == ()
    for path in tmp_path.glob("b.db*"):
        path.unlink(missing_ok=True)
    whole.rename(tmp_path / "b.db")
    await is_back(engine)
    assert sorted(await work_off(engine)) == sorted([*before, *meanwhile])


async def test_a_file_that_vanishes_while_reopening_is_not_recreated(
    tmp_path: Path, engine: PartitionedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(engine, "before")
    lost = engine._members.all[SECOND]
    await lost.close()

    def gone(_engine: SQLiteEngine, **_: bool) -> str:
        for path in tmp_path.glob("b.db*"):
            path.unlink()
        return ""

    monkeypatch.setattr(SQLiteEngine, "missing", gone)
    with pytest.raises(EngineError):
        await lost.reopen()
    assert not (tmp_path / "b.db").exists()


async def test_a_damaged_file_stays_out_until_it_is_restored(tmp_path: Path) -> None:
    engine = files(tmp_path)
    await engine.open()
    before = await fill(engine, "before")
    await engine.close()
    shutil.copy(tmp_path / "b.db", tmp_path / "saved")
    (tmp_path / "b.db").write_bytes(b"\xff" * (tmp_path / "b.db").stat().st_size)
    await engine.open()
    assert engine.partitions()[SECOND].out_ms is not None
    meanwhile = await go_on(engine)
    shutil.move(tmp_path / "saved", tmp_path / "b.db")
    await is_back(engine)
    assert sorted(await work_off(engine)) == sorted([*before, *meanwhile])
    await engine.close()


async def test_a_locked_file_blocks_only_its_own_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BUSY_MS", 20)
    engine = files(tmp_path)
    await engine.open()
    before = await fill(engine, "before")
    holder = apsw.Connection(str(tmp_path / "b.db"))
    holder.execute("BEGIN IMMEDIATE")
    await is_out(engine)
    meanwhile = await go_on(engine)
    holder.execute("ROLLBACK")
    holder.close()
    await is_back(engine)
    done = await work_off(engine)
    assert sorted(set(done) - set(ids_at(SECOND, 1, "probe"))) == sorted([*before, *meanwhile])
    await engine.close()


async def test_a_full_disk_refuses_new_jobs_and_settles_leases(
    tmp_path: Path, small_disk: Path, fill_up: Callable[[int], None]
) -> None:
    engine = over(
        SQLiteEngine(tmp_path / "a.db"),
        SQLiteEngine(small_disk / "b.db"),
        SQLiteEngine(tmp_path / "c.db"),
    )
    await engine.open()
    before = await fill(engine, "before")
    own = tuple(ids_at(SECOND, 5, "before"))
    leases = await engine.lease(LeaseRequest(ids=own[:2], limit=2))
    fill_up(0)
    await is_out(engine)
    assert engine.partitions()[SECOND].code == StorageFull.code
    done = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
    outcomes: list[Outcome] = []
    while not outcomes:
        try:
            outcomes = await engine.settle(done)
        except EngineUnavailable:
            await asyncio.sleep(0.01)
    assert outcomes == [Outcome.SETTLED] * 2
    (small_disk / "filler").unlink()
    await is_back(engine)
    ended = [lease.id for lease in leases]
    rest = await work_off(engine)
    assert set(before) <= {*rest, *ended}
    await engine.close()


@pytest.fixture(scope="module")
def own_server() -> Iterator[PrivatePostgres]:
    with PrivatePostgres(fsync=True) as server:
        yield server


async def test_a_killed_database_comes_back_with_every_acknowledged_job(
    tmp_path: Path, own_server: PrivatePostgres
) -> None:
    urls = (f"sqlite:///{tmp_path}/a.db", own_server.dsn, f"sqlite:///{tmp_path}/c.db")
    engine = over(*map(open_engine, urls))
    await engine.open()
    before = await fill(engine, "before")
    (lease,) = await engine.lease(LeaseRequest(ids=(ids_at(SECOND, 1, "before")[0],)))
    own_server.kill()
    await is_out(engine)
    meanwhile = await go_on(engine)
    with pytest.raises(EngineUnavailable):
        await engine.settle([Settlement(lease=lease, verdict=Complete())])
    own_server.restart()
    await is_back(engine)
    assert await engine.settle([Settlement(lease=lease, verdict=Complete())]) == [Outcome.SETTLED]
    done = [lease.id, *await work_off(engine)]
    assert sorted(set(done) - set(ids_at(SECOND, 1, "probe"))) == sorted([*before, *meanwhile])
    assert len(done) == len(set(done))
    await engine.close()


@pytest.mark.parametrize("content", [None, b"no database" * 1_000])
async def test_a_file_lost_while_closed_is_shut_out_at_the_next_opening(
    tmp_path: Path, content: bytes | None
) -> None:
    engine = files(tmp_path)
    await engine.open()
    before = await fill(engine, "before")
    await engine.close()
    (tmp_path / "b.db").rename(tmp_path / "saved")
    if content is not None:
        (tmp_path / "b.db").write_bytes(content)
    again = files(tmp_path)
    await again.open()
    assert again.partitions()[SECOND].out_ms is not None
    assert (tmp_path / "b.db").exists() == (content is not None)
    meanwhile = await go_on(again)
    (tmp_path / "saved").rename(tmp_path / "b.db")
    await is_back(again)
    assert sorted(await work_off(again)) == sorted([*before, *meanwhile])
    await again.close()


def in_folders(folder: Path) -> PartitionedEngine:
    """Each file in a folder of its own, as on disks of their own."""
    return over(*(SQLiteEngine(folder / name / f"{name}.db") for name in NAMES))


async def test_a_missing_folder_is_not_created(tmp_path: Path) -> None:
    """A disk that is not mounted: its folder is missing, later or from the start."""
    for name in NAMES:
        (tmp_path / name).mkdir()
    engine = in_folders(tmp_path)
    await engine.open()
    done = await fill(engine, "before")
    (tmp_path / "b").rename(tmp_path / "away")
    await is_out(engine)
    await wait_for_text(engine, "there is no folder")
    await engine.close()
    again = in_folders(tmp_path)
    assert again.missing() == ""
    await again.open()
    assert "there is no folder" in again.partitions()[SECOND].text
    done += await go_on(again)
    assert not (tmp_path / "b").exists()
    (tmp_path / "away").rename(tmp_path / "b")
    await is_back(again)
    assert sorted(await work_off(again)) == sorted(done)
    await again.close()


async def test_the_first_opening_creates_files_but_no_folder(tmp_path: Path) -> None:
    for name in "ac":
        (tmp_path / name).mkdir()
    engine = in_folders(tmp_path)
    assert "there is no file" in engine.missing()
    assert f"there is no folder {tmp_path}/b" in engine.missing(creating=True)
    with pytest.raises(ConfigError, match=f"there is no folder {tmp_path}/b: create it first"):
        await engine.open()
    assert not (tmp_path / "b").exists()
    (tmp_path / "b").mkdir()
    with pytest.raises(EngineUnavailable, match="there is no file"):
        await engine.reopen()
    await engine.open()
    await engine.close()
    assert in_folders(tmp_path).missing() == ""


async def test_a_wrong_name_of_a_missing_file_is_an_error_of_the_list(tmp_path: Path) -> None:
    engine = files(tmp_path)
    await engine.open()
    await engine.close()
    stores = [(name, SQLiteEngine(tmp_path / f"{name}.db")) for name in ("a", "x", "c")]
    with pytest.raises(ConfigError, match=r"there is no file .*x\.db, and partition 2 was b"):
        await PartitionedEngine(stores).open()
    assert not (tmp_path / "x.db").exists()


async def test_the_first_opening_names_the_problem_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "b.db").write_bytes(b"no database" * 1_000)
    with pytest.raises(ConfigError, match="not a database"):
        await files(tmp_path).open()
