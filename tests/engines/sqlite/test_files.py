"""Paths, modes and owners of the files, and the places that are refused."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

from holdfast.core.model import NewJob
from holdfast.engines.sqlite import SQLiteEngine, connection
from holdfast.engines.sqlite.files import Files
from holdfast.errors import ConfigError, EngineUnavailable
from holdfast.testing.clock import ManualClock
from tests.engines.sqlite.conftest import OpenEngine


async def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
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


async def test_a_mode_set_by_the_owner_is_kept(open_engine: OpenEngine, path: Path) -> None:
    engine = await open_engine()
    await engine.close()
    path.chmod(0o660)
    await engine.open()
    await engine.enqueue([NewJob(id="one", task="t")])
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


async def test_a_link_is_followed_and_our_files_are_created_beside_the_target(
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


async def test_a_hard_link_is_refused(tmp_path: Path, open_engine: OpenEngine, path: Path) -> None:
    engine = await open_engine()
    await engine.close()
    (tmp_path / "second.db").hardlink_to(path)
    with pytest.raises(ConfigError, match="hard link"):
        await SQLiteEngine(tmp_path / "second.db").open()


async def test_a_directory_writable_by_every_user_is_refused(tmp_path: Path) -> None:
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


async def test_the_ballast_is_never_truncated_through_a_link(
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


async def test_an_existing_lock_file_does_not_make_the_database_public(
    open_engine: OpenEngine, path: Path
) -> None:
    lock = path.with_name("jobs.db-lock")
    lock.touch()
    lock.chmod(0o666)
    await open_engine()
    for file in (lock, path, path.with_name("jobs.db-wal")):
        assert not file.stat().st_mode & stat.S_IRWXO


async def test_a_database_readable_by_every_user_is_reported(
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
async def test_another_users_file_in_a_shared_directory_is_refused(
    tmp_path: Path, ending: str
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    planted = tmp_path / "open" / f"jobs.db{ending}"
    planted.touch()
    os.chown(planted, 12345, 12345)
    with pytest.raises(ConfigError, match="12345"):
        await SQLiteEngine(tmp_path / "open" / "jobs.db").open()


async def test_a_path_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ConfigError, match="UTF-8"):
        SQLiteEngine(os.fsdecode(b"jobs-\xff.db"))


async def test_a_backup_path_is_always_a_file_name(
    tmp_path: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await open_engine()
    monkeypatch.chdir(tmp_path)
    await engine.backup(":memory:")
    assert (tmp_path / ":memory:").stat().st_size > 0


@pytest.mark.parametrize("bad", ["", ":memory:", "file:jobs.db", "a\0b"])
def test_a_path_that_names_no_file_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError):
        SQLiteEngine(bad)


async def test_a_file_that_is_no_database_is_refused_and_unchanged(path: Path) -> None:
    path.write_text("My diary. " * 1_000)
    with pytest.raises(ConfigError, match="is not a database"):
        await SQLiteEngine(path).open()
    assert path.read_text().startswith("My diary.")
    assert list(path.parent.iterdir()) == [path], "no file was created beside it"


async def test_an_overwritten_database_is_reported_as_damaged(
    path: Path, open_engine: OpenEngine
) -> None:
    await (await open_engine()).close()
    path.write_text("My diary. " * 1_000)
    engine = SQLiteEngine(path)
    assert engine.missing() == ""
    with pytest.raises(EngineUnavailable, match="damaged"):
        await engine.open()


async def test_missing_keeps_the_locks_of_an_open_engine(
    path: Path, open_engine: OpenEngine, tmp_path: Path
) -> None:
    """Closing a file drops all locks of the process on it, unless SQLite itself closes it."""
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
def test_a_torn_first_page_still_counts_as_a_database(tmp_path: Path, ending: str) -> None:
    """After a power cut the right page may be in the log or the journal; SQLite decides."""
    files = Files(tmp_path / "jobs.db")
    files.database.write_bytes(os.urandom(4096))
    with pytest.raises(ConfigError, match="is not a database"):
        connection.has_tables(files, None)
    (tmp_path / f"jobs.db{ending}").write_bytes(b"")
    assert connection.has_tables(files, None)


def test_a_folder_is_trusted_once_its_time_cannot_repeat(tmp_path: Path) -> None:
    """The next change within one step of the file system's clock may get the same time."""
    files = Files(tmp_path / "work.db")
    now = time.time_ns()
    fine, coarse = now - now % 10_000_000 + 1_234, now - now % 1_000_000_000
    for changed_ns, is_trusted in (
        (fine + 10_000_000_000, False),
        (fine - 1_000_000_000, True),
        (coarse - 1_000_000_000, False),
        (coarse - 4_000_000_000, True),
    ):
        os.utime(tmp_path, ns=(changed_ns, changed_ns))
        assert (files.stamp() is not None) == is_trusted
