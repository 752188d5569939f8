"""Where the files lie, who may read them, and what is refused."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from holdfast.core.model import NewJob
from holdfast.engines.sqlite import SQLiteEngine, presence
from holdfast.engines.sqlite.files import Files
from holdfast.errors import ConfigError, EngineUnavailable
from holdfast.testing.clock import ManualClock
from tests.engines.sqlite.conftest import OpenEngine


async def test_nobody_else_can_read_anything_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        engine = SQLiteEngine(tmp_path / "new" / "deep" / "jobs.db")
        await engine.open()
        await engine.enqueue([NewJob(id="one", task="t")])
        await engine.backup(tmp_path / "copy.db")
        modes = {
            file.name: stat.S_IMODE(file.stat().st_mode)
            for file in (tmp_path / "new" / "deep").iterdir()
        }
        await engine.close()
    finally:
        os.umask(before)
    endings = ("", "-wal", "-shm", "-lock", "-bell", "-ballast")
    assert modes == {f"jobs.db{ending}": 0o600 for ending in endings}
    for folder in (tmp_path / "new", tmp_path / "new" / "deep"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600


async def test_a_mode_given_on_purpose_is_kept(open_engine: OpenEngine, path: Path) -> None:
    engine = await open_engine()
    await engine.close()
    path.chmod(0o660)
    await engine.open()
    await engine.enqueue([NewJob(id="one", task="t")])
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


async def test_a_link_is_followed_and_all_its_files_lie_beside_the_target(
    tmp_path: Path, clock: ManualClock, open_engine: OpenEngine, path: Path
) -> None:
    engine = await open_engine()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "link.db").symlink_to(path)
    other = SQLiteEngine(elsewhere / "link.db", clock=clock)
    await other.open()
    await other.enqueue([NewJob(id="one", task="t")])
    assert await engine.get("one") is not None
    assert [file.name for file in elsewhere.iterdir()] == ["link.db"]
    await other.close()


async def test_a_second_name_is_refused(
    tmp_path: Path, open_engine: OpenEngine, path: Path
) -> None:
    engine = await open_engine()
    await engine.close()
    (tmp_path / "second.db").hardlink_to(path)
    with pytest.raises(ConfigError, match="hard link"):
        await SQLiteEngine(tmp_path / "second.db").open()


async def test_a_directory_where_anybody_may_replace_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ConfigError, match="chmod o-w"):
        await SQLiteEngine(tmp_path / "open" / "jobs.db").open()
    (tmp_path / "open").chmod(0o1777)
    engine = SQLiteEngine(tmp_path / "open" / "jobs.db")
    await engine.open()
    await engine.close()


async def test_our_own_files_are_never_opened_through_a_link(tmp_path: Path, path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "jobs.db-lock").symlink_to(victim)
    with pytest.raises(EngineUnavailable):
        await SQLiteEngine(path).open()
    assert victim.read_text() == "precious"


async def test_the_ballast_is_never_given_up_through_a_link(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "jobs.db-ballast").symlink_to(victim)
    engine = await open_engine()
    await engine.enqueue([NewJob(id="one", task="t")])
    engine._disk.give_up_ballast()
    assert victim.read_text() == "precious"
    assert any("ballast" in text for text in await engine.trouble())


async def test_a_lock_file_that_lay_there_opens_the_database_to_nobody(
    open_engine: OpenEngine, path: Path
) -> None:
    lock = path.with_name("jobs.db-lock")
    lock.touch()
    lock.chmod(0o666)
    await open_engine()
    for file in (lock, path, path.with_name("jobs.db-wal")):
        assert not file.stat().st_mode & stat.S_IRWXO


async def test_a_database_that_anybody_may_read_is_told_of(
    open_engine: OpenEngine, path: Path
) -> None:
    engine = await open_engine()
    await engine.enqueue([NewJob(id="one", task="t")])
    assert await engine.trouble() == []
    path.chmod(0o644)
    (text,) = await engine.trouble()
    assert "chmod o-rwx" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("ending", ["", "-lock", "-bell"])
async def test_a_strangers_file_in_an_open_directory_is_refused(
    tmp_path: Path, ending: str
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    planted = tmp_path / "open" / f"jobs.db{ending}"
    planted.touch()
    os.chown(planted, 12345, 12345)
    with pytest.raises(ConfigError, match="12345"):
        await SQLiteEngine(tmp_path / "open" / "jobs.db").open()


async def test_a_name_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ConfigError, match="UTF-8"):
        SQLiteEngine(os.fsdecode(b"jobs-\xff.db"))


async def test_no_name_of_a_backup_has_a_second_meaning(
    tmp_path: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await open_engine()
    monkeypatch.chdir(tmp_path)
    await engine.backup(":memory:")
    assert (tmp_path / ":memory:").stat().st_size > 0


@pytest.mark.parametrize("bad", ["", ":memory:", "file:jobs.db", "a\0b"])
def test_what_is_no_path_of_a_file_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError):
        SQLiteEngine(bad)


async def test_a_file_that_is_no_database_is_refused_and_kept(path: Path) -> None:
    path.write_text("My diary. " * 1_000)
    with pytest.raises(ConfigError, match="is not a database"):
        await SQLiteEngine(path).open()
    assert path.read_text().startswith("My diary.")
    assert list(path.parent.iterdir()) == [path], "nothing is laid beside it"


async def test_a_database_of_ours_that_was_overwritten_is_damaged(
    path: Path, open_engine: OpenEngine
) -> None:
    await (await open_engine()).close()
    path.write_text("My diary. " * 1_000)
    engine = SQLiteEngine(path)
    assert engine.missing() == ""
    with pytest.raises(EngineUnavailable, match="damaged"):
        await engine.open()


async def test_a_look_for_what_is_missing_is_free_beside_an_open_engine(
    path: Path, open_engine: OpenEngine, tmp_path: Path
) -> None:
    """Closing a file drops every lock that the process has on it, unless SQLite sees to it."""
    engine = await open_engine()
    await engine.enqueue([NewJob(id="one", task="t")])
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    assert SQLiteEngine(path).missing() == ""
    assert SQLiteEngine(tmp_path / "none.db").missing().startswith("there is no file")
    assert SQLiteEngine(tmp_path / "none.db").missing(creating=True) == ""
    program = f"import apsw; apsw.Connection({str(path)!r}).execute('BEGIN IMMEDIATE')"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert b"BusyError" in ran.stderr
    other.close()


async def test_odd_characters_in_the_path(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "a b?c#d%41é" / "jobs?mode=memory.db"
    engine = SQLiteEngine(path, clock=clock)
    await engine.open()
    await engine.enqueue([NewJob(id="one", task="t")])
    await engine.close()
    assert path.stat().st_size > 0
    again = SQLiteEngine(path, clock=clock)
    await again.open()
    assert await again.get("one") is not None
    await again.close()


@pytest.mark.parametrize("ending", ["-wal", "-journal", "-lock"])
def test_a_torn_first_page_is_not_taken_for_a_foreign_file(tmp_path: Path, ending: str) -> None:
    """After a power cut what is right may be in the log or the journal: SQLite is to say."""
    files = Files(tmp_path / "jobs.db")
    files.database.write_bytes(os.urandom(4096))
    with pytest.raises(ConfigError, match="is not a database"):
        presence.has_tables(files, None)
    (tmp_path / f"jobs.db{ending}").write_bytes(b"")
    assert presence.has_tables(files, None)
