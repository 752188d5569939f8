"""SQLite's log and index belong to the store: files removed or moved beside live processes."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import apsw
import pytest

from holdfast.core.model import NewJob
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.engines.sqlite.files import Files, FileSet
from holdfast.engines.sqlite.transaction import Transaction
from holdfast.errors import EngineUnavailable, OutcomeUnknown
from tests.crash.faults.conftest import OpenEngine
from tests.engines.sqlite.programs import Start, programs, send

# Opens the file and enqueues each id it reads; says "ok", or the code and text of the error.
PRODUCER = """
import asyncio, sys
from holdfast.core.model import NewJob
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.errors import HoldfastError

async def main():
    engine = SQLiteEngine(sys.argv[1])
    await engine.open()
    print("open", flush=True)
    loop = asyncio.get_running_loop()
    while id := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        try:
            await engine.enqueue([NewJob(id=id, task="noop")])
            print("ok", flush=True)
        except HoldfastError as error:
            print(error.code, error, flush=True)
    await engine.close()

asyncio.run(main())
"""
# Opens, enqueues, reads and closes again and again; ends with an error if a call does.
VISITOR = """
import asyncio, sys
from holdfast.core.model import NewJob
from holdfast.engines.sqlite import SQLiteEngine

async def main():
    for turn in range(int(sys.argv[3])):
        engine = SQLiteEngine(sys.argv[1])
        await engine.open()
        id = f"{sys.argv[2]}-{turn}"
        await engine.enqueue([NewJob(id=id, task="noop")])
        assert await engine.get(id) is not None
        await engine.close()

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def start(path: Path) -> AsyncIterator[Start]:
    async with programs(PRODUCER, path) as start_one:
        yield start_one


async def kill(process: Process) -> None:
    process.kill()
    await process.wait()


async def expect(path: Path, ids: set[str]) -> None:
    """The store is undamaged and has these jobs."""
    engine = SQLiteEngine(path)
    await engine.open()
    report = await engine.examine(deep=True)
    assert report.damage == ()
    assert [one for one in sorted(ids) if await engine.get(one) is None] == []
    await engine.close()


def beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


REMOVED = [("-shm",), ("-wal",), ("-wal", "-shm")]


@pytest.mark.parametrize("endings", REMOVED)
async def test_what_is_acknowledged_survives_a_removed_file(
    path: Path, start: Start, endings: tuple[str, ...]
) -> None:
    producer = await start()
    acknowledged = {f"before-{n}" for n in range(20)}
    for one in acknowledged:
        assert await send(producer, one) == "ok"
    for ending in endings:
        beside(path, ending).unlink()
    # Another process would make files of its own, and the two would not see each other's commits.
    with pytest.raises(EngineUnavailable, match="other processes use it"):
        await SQLiteEngine(path).open()
    answer = await send(producer, "refused")
    assert answer.startswith(f"unavailable {beside(path, endings[0])} was deleted while in use")
    assert await send(producer, "after") == "ok"
    other = await start()
    assert await send(other, "other") == "ok"
    await kill(producer)
    await kill(other)
    await expect(path, acknowledged | {"after", "other"})


@pytest.mark.parametrize("endings", REMOVED)
async def test_all_processes_go_on_with_the_same_files(
    path: Path, start: Start, endings: tuple[str, ...]
) -> None:
    first, second = await start(), await start()
    assert await send(first, "1") == await send(second, "2") == "ok"
    for ending in endings:
        beside(path, ending).unlink()
    assert (await send(first, "refused")).startswith("unavailable")
    assert await send(first, "3") == "ok"
    assert (await send(second, "refused")).startswith("unavailable")
    assert await send(second, "4") == "ok"
    assert await send(first, "5") == "ok"
    await kill(first)
    assert await send(second, "6") == "ok"
    await kill(second)
    await expect(path, set("123456"))


@pytest.mark.parametrize("endings", REMOVED)
async def test_a_process_that_closes_saves_a_removed_log(
    path: Path, open_engine: OpenEngine, endings: tuple[str, ...]
) -> None:
    engine = await open_engine()
    await engine.enqueue([NewJob(id="one", task="noop")])
    for ending in endings:
        beside(path, ending).unlink()
    await engine.close()
    await expect(path, {"one"})


async def test_a_look_notices_too(path: Path, open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await engine.enqueue([NewJob(id="one", task="noop")])
    beside(path, "-wal").unlink()
    with pytest.raises(EngineUnavailable, match=r"jobs.db-wal was deleted while in use"):
        await engine.get("one")
    assert await engine.get("one") is not None


async def test_a_commit_into_a_removed_log_is_not_acknowledged(
    path: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await open_engine()
    transact = engine._database._transact

    def removed_meanwhile(work: Callable[[Transaction], object]) -> object:
        result = transact(work)
        beside(path, "-wal").unlink()
        return result

    with monkeypatch.context() as patch:
        patch.setattr(engine._database, "_transact", removed_meanwhile)
        with pytest.raises(OutcomeUnknown, match=r"jobs.db-wal was deleted while in use"):
            await engine.enqueue([NewJob(id="one", task="noop")])
    with pytest.raises(EngineUnavailable):
        await engine.enqueue([NewJob(id="one", task="noop")])
    (receipt,) = await engine.enqueue([NewJob(id="one", task="noop")])
    assert receipt.status == "duplicate"


async def test_a_log_in_use_by_a_reader_is_saved_once_it_ends(
    path: Path, open_engine: OpenEngine
) -> None:
    engine = await open_engine()
    await engine.enqueue([NewJob(id="one", task="noop")])
    reader = engine._database.connect_reader()
    reader.execute("BEGIN; SELECT * FROM hf_jobs").get  # noqa: B018 - takes the snapshot
    await engine.enqueue([NewJob(id="two", task="noop")])
    beside(path, "-wal").unlink()
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="a reader keeps its commits"):
            await engine.enqueue([NewJob(id="refused", task="noop")])
    reader.close()
    with pytest.raises(EngineUnavailable, match="its commits were saved"):
        await engine.enqueue([NewJob(id="refused", task="noop")])
    await engine.enqueue([NewJob(id="three", task="noop")])
    await engine.close()
    await expect(path, {"one", "two", "three"})


async def test_a_database_that_was_moved_away_can_come_back(path: Path, start: Start) -> None:
    producer = await start()
    assert await send(producer, "one") == "ok"
    away = path.rename(path.with_name("away"))
    with pytest.raises(EngineUnavailable, match="other processes use it"):
        await SQLiteEngine(path).open()
    assert "jobs.db was deleted while in use: put it back" in await send(producer, "refused")
    assert not path.exists()
    away.rename(path)
    assert await send(producer, "two") == "ok"
    await kill(producer)
    log = beside(path, "-wal").read_bytes()
    path.rename(away)
    with pytest.raises(EngineUnavailable, match=r"jobs.db-wal holds commits that belong to it"):
        await SQLiteEngine(path).open()
    path.touch()
    with pytest.raises(EngineUnavailable, match=r"jobs.db-wal holds commits that belong to it"):
        await SQLiteEngine(path).open()
    assert beside(path, "-wal").read_bytes() == log
    away.rename(path)
    await expect(path, {"one", "two"})


async def test_a_replaced_database_is_not_opened_with_the_old_log(
    path: Path, open_engine: OpenEngine
) -> None:
    engine = await open_engine()
    await engine.enqueue([NewJob(id="one", task="noop")])
    copy = path.with_name("copy.db")
    await engine.backup(copy)
    await engine.enqueue([NewJob(id="two", task="noop")])
    old = path.rename(path.with_name("old.db"))
    copy.rename(path)
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="is still the log of the old file"):
            await engine.enqueue([NewJob(id="refused", task="noop")])
    with pytest.raises(EngineUnavailable, match="other processes use it"):
        await SQLiteEngine(path).open()
    old.rename(path)
    await engine.enqueue([NewJob(id="three", task="noop")])
    await engine.close()
    await expect(path, {"one", "two", "three"})


async def test_a_callers_connection_to_a_removed_log_is_refused(
    path: Path, open_engine: OpenEngine
) -> None:
    engine = await open_engine()
    mine = apsw.Connection(str(path))
    mine.execute("CREATE TABLE mine (a)")
    beside(path, "-wal").unlink()
    mine.execute("BEGIN IMMEDIATE")
    with pytest.raises(EngineUnavailable, match=r"jobs.db-wal was deleted while in use"):
        engine.within(mine).enqueue([NewJob(id="refused", task="noop")])
    mine.execute("ROLLBACK")
    with pytest.raises(EngineUnavailable, match=r"jobs.db-wal was deleted while in use"):
        await engine.enqueue([NewJob(id="refused", task="noop")])
    await engine.enqueue([NewJob(id="one", task="noop")])
    mine.execute("BEGIN")
    with pytest.raises(EngineUnavailable, match="close it, and open a new one"):
        engine.within(mine).enqueue([NewJob(id="refused", task="noop")])
    mine.close()
    mine = apsw.Connection(str(path))
    mine.execute("BEGIN IMMEDIATE")
    engine.within(mine).enqueue([NewJob(id="two", task="noop")])
    mine.execute("COMMIT")
    mine.close()
    await engine.close()
    await expect(path, {"one", "two"})


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
async def test_a_deep_examination_names_a_process_that_uses_a_removed_file(
    path: Path, start: Start
) -> None:
    producer = await start()
    assert await send(producer, "one") == "ok"
    beside(path, "-shm").unlink()
    # As any SQLite program does, this one makes a new index and knows nothing of the old one.
    stranger = apsw.Connection(str(path))
    stranger.execute("SELECT count(*) FROM hf_jobs").get  # noqa: B018 - connects to the log
    beside(path, "-lock").unlink()
    engine = SQLiteEngine(path)
    await engine.open()
    report = await engine.examine(deep=True)
    assert report.damage is not None
    assert f"process {producer.pid} still uses a {path}-shm that was removed" in report.damage[0]
    assert (await engine.examine()).damage is None
    await engine.close()
    stranger.close()


async def test_an_unchanged_folder_costs_one_system_call_a_check(
    path: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await open_engine()
    await engine.enqueue([NewJob(id="zero", task="noop")])
    os.utime(path.parent, (1, 1))
    await engine.enqueue([NewJob(id="one", task="noop")])
    await engine.get("one")
    looked: list[FileSet] = []

    def counted(files: Files) -> FileSet:
        looked.append(identify(files))
        return looked[-1]

    identify = Files.identify
    monkeypatch.setattr(Files, "identify", counted)
    await engine.enqueue([NewJob(id="two", task="noop")])
    assert await engine.get("two") is not None
    assert looked == []
    path.with_name("unrelated").touch()
    await engine.enqueue([NewJob(id="three", task="noop")])
    assert looked


async def test_processes_that_come_and_go_raise_no_alarm(path: Path) -> None:
    """SQLite removes log and index with the last connection, and the next one creates them."""
    visitors = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", VISITOR, str(path), name, "25", stderr=PIPE
        )
        for name in "abc"
    ]
    ends = [await visitor.communicate() for visitor in visitors]
    assert [error.decode() for _, error in ends] == ["", "", ""]
    await expect(path, {f"{name}-{turn}" for name in "abc" for turn in range(25)})
