"""The file is replaced, deleted, on a network, or open in another SQLite library."""

import sqlite3
from pathlib import Path

import apsw
import pytest

from holdfast.core.model import NewJob
from holdfast.engines.sqlite import SQLiteEngine, files
from holdfast.errors import ConfigError, EngineUnavailable, UsageError
from tests.crash.faults.conftest import OpenEngine


async def test_a_deleted_file_is_noticed(tmp_path: Path, open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await engine.enqueue([NewJob(id="one", task="noop")])
    (tmp_path / "jobs.db").unlink()
    with pytest.raises(EngineUnavailable, match="deleted"):
        await engine.enqueue([NewJob(id="two", task="noop")])
    with pytest.raises(EngineUnavailable, match="deleted"):
        await engine.get("one")


async def test_a_replaced_file_is_noticed_and_then_used(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    other = await open_engine(tmp_path / "other.db")
    await other.enqueue([NewJob(id="other", task="noop")])
    await other.close()
    engine = await open_engine()
    await engine.enqueue([NewJob(id="one", task="noop")])
    for ending in ("-wal", "-shm"):
        (tmp_path / f"jobs.db{ending}").unlink(missing_ok=True)
    (tmp_path / "other.db").rename(tmp_path / "jobs.db")
    with pytest.raises(EngineUnavailable, match="replaced"):
        await engine.enqueue([NewJob(id="two", task="noop")])
    await engine.enqueue([NewJob(id="three", task="noop")])
    assert await engine.get("one") is None
    assert await engine.get("two") is None
    assert await engine.get("other") is not None
    assert await engine.get("three") is not None


async def test_a_link_leads_to_the_same_file(tmp_path: Path, open_engine: OpenEngine) -> None:
    engine = await open_engine()
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.db"
    link.symlink_to(tmp_path / "jobs.db")
    linked = await open_engine(link)
    await engine.enqueue([NewJob(id="one", task="noop")])
    await linked.enqueue([NewJob(id="two", task="noop")])
    assert await linked.get("one") is not None
    assert await engine.get("two") is not None
    assert [path.name for path in link.parent.iterdir()] == ["link.db"]


@pytest.mark.parametrize("number", [0x6969, 0x65735546, 0xFF534D42, 0x01021997])
async def test_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(files, "file_system_number", lambda _: number)
    engine = SQLiteEngine(tmp_path / "jobs.db")
    with pytest.raises(ConfigError, match=r"local disk"):
        await engine.open()
    assert not (tmp_path / "jobs.db").exists()


async def test_a_backup_is_complete(tmp_path: Path, open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await engine.enqueue([NewJob(id="one", task="noop")])
    await engine.backup(tmp_path / "copy.db")
    await engine.enqueue([NewJob(id="two", task="noop")])
    copy = await open_engine(tmp_path / "copy.db")
    assert await copy.get("one") is not None
    assert await copy.get("two") is None


async def test_a_connection_of_another_sqlite_library_is_refused(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    """Two SQLite libraries in one process drop each other's locks, and then commits get lost."""
    engine = await open_engine()
    stranger = sqlite3.connect(":memory:")
    with pytest.raises(UsageError, match="apsw"):
        engine.within(stranger)  # type: ignore[arg-type]
    stranger.close()


async def test_an_apsw_connection_takes_part(tmp_path: Path, open_engine: OpenEngine) -> None:
    engine = await open_engine()
    connection = apsw.Connection(str(tmp_path / "jobs.db"))
    connection.execute("CREATE TABLE mine (a)")
    connection.execute("BEGIN IMMEDIATE; INSERT INTO mine VALUES (1)")
    engine.within(connection).enqueue([NewJob(id="undone", task="noop")])
    connection.execute("ROLLBACK")
    assert await engine.get("undone") is None
    connection.execute("BEGIN IMMEDIATE; INSERT INTO mine VALUES (1)")
    engine.within(connection).enqueue([NewJob(id="done", task="noop")])
    connection.execute("COMMIT")
    assert await engine.get("done") is not None
    connection.close()
