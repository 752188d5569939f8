"""The open database: writer and reader connections, their threads, the process lock, recovery.

Writers of all processes queue for a lock file, which is fair, before they take SQLite's own lock,
which is not. A connection belongs to one `SerialThread`: a call that has not started within
START_TIMEOUT_S is withdrawn and fails, a call that has started is always awaited. After a fault all
connections are reopened before they are used again, and so they are if a file of the store was
removed or replaced: every commit and every look compares the files at the paths with those in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeVar

import apsw

from holdfast.engines.clock import Clock
from holdfast.engines.extras import Examination
from holdfast.engines.sqlite import connection as connections
from holdfast.engines.sqlite import faults, schema
from holdfast.engines.sqlite.connection import Durability, WriteAheadLog
from holdfast.engines.sqlite.files import (
    Disk,
    Files,
    FileSet,
    FolderStamp,
    Identity,
    open_in_process,
)
from holdfast.engines.sqlite.flow.effects import apply_deferred
from holdfast.engines.sqlite.transaction import LaneCache, QueueCache, Transaction
from holdfast.errors import (
    EngineClosed,
    EngineError,
    EngineUnavailable,
    OutcomeUnknown,
    StorageFull,
)

Result = TypeVar("Result")

START_TIMEOUT_S = 15.0
"""Time a call may wait to start, behind earlier calls and other processes' locks."""

_LEAVING_S = 0.5
"""Time that the kernel may take to drop the locks of a killed process."""

_SAFE_LIBRARY = (3, 51, 3)
"""In earlier SQLite versions a checkpoint concurrent with a commit can damage the file."""

_open_databases: weakref.WeakSet[Database] = weakref.WeakSet()


class Session:
    """One connection with its caches; replaced after a fault."""

    def __init__(self, namespace: str) -> None:
        self.queue_cache: QueueCache = QueueCache(namespace)
        self.lane_cache: LaneCache = LaneCache()
        self.connection: apsw.Connection | None = None
        self.files: FileSet | None = None
        """The files that the connection uses."""
        self.stamp: FolderStamp | None = None
        """The folder when these files were last found in it."""
        self.generation = -1
        self.in_use: Final = threading.Lock()
        """Held by the thread that uses the connection, or closes it on behalf of another one."""

    def clear(self, found: FileSet | None) -> None:
        """Close the connection and empty the caches. `found` are the files at the paths."""
        connection, self.connection = self.connection, None
        known, self.files = self.files, None
        self.stamp = None
        self.queue_cache.invalidate()
        self.lane_cache.clear()
        if connection is not None:
            with contextlib.suppress(*faults.Trouble):
                if found != known:
                    # The last connection would checkpoint its log and delete the one at the path.
                    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                connection.close()


class Database:
    """Runs functions in transactions on one file."""

    def __init__(
        self,
        files: Files,
        *,
        disk: Disk,
        clock: Clock,
        namespace: str,
        durability: Durability,
        vfs: str | None,
    ) -> None:
        self._files = files
        self._path = str(files.database)
        self._disk = disk
        self._clock = clock
        self._namespace = namespace
        self._durability = durability
        self._vfs = vfs
        self._writer = Session(namespace)
        self._reader = Session(namespace)
        self._lock = -1
        self._bell = -1
        self._boot_id = ""
        self._generation = 0
        self._removed: set[Identity] = set()
        """Files that were removed while in use; a program's own connection may still use them."""
        self.wal: WriteAheadLog = WriteAheadLog()

    def open(self, guard: StartGuard, *, create: bool = True) -> None:
        """Create or check the files; can be withdrawn until the lock is obtained."""
        try:
            self._files.prepare(create=create)
            if not self._files.lock.exists():
                # Refuse a file that is not a database before creating other files next to it.
                connections.has_tables(self._files, self._vfs)
            self._lock = self._files.open_private(self._files.lock)
            self._bell = self._files.open_private(self._files.bell)
            _open_databases.add(self)
        except OSError as error:
            raise faults.before_commit(error) from error
        self._connect_writer(guard, create=create)

    def missing(self, *, creating: bool) -> str:
        """Name what opening would have to create, or ""; see `connection.missing`."""
        return connections.missing(self._files, self._vfs, creating=creating)

    def close(self) -> None:
        """Close both connections and our own files."""
        if self._writer.connection is not None and self._find() != self._writer.files:
            with contextlib.suppress(EngineError, *faults.Trouble):
                self._acquire_lock()
                self._save_removed_log()
        self._clear_sessions()
        self.release_files()

    def release_files(self) -> None:
        """Close the lock and bell files. A forked child must do this: inherited locks outlive a
        kill of the parent.
        """
        _open_databases.discard(self)
        for descriptor in (self._lock, self._bell):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock = self._bell = -1

    def write(
        self,
        work: Callable[[Transaction], Result],
        guard: StartGuard,
        *,
        grows_bytes: int | None = None,
    ) -> Result:
        """Run `work` in one write transaction, unless its caller has withdrawn it.

        A call that grows the store passes `grows_bytes`: it must leave the floor of free space, and
        never uses the ballast.
        """
        connection = self._writer_connection()
        if grows_bytes is not None:
            self._check_room(grows_bytes)
        self._acquire_lock()
        try:
            _take(guard)
            self._check_files()
            try:
                result = self._transact(work)
            except StorageFull:
                if grows_bytes is None:
                    self._disk.give_up_ballast()
                # A log that took up the last free space gives it back.
                self._truncate_wal(connection)
                if grows_bytes is not None:
                    raise
                result = self._transact(work)
            self._check_committed()
            if self.wal.pages >= self.wal.due_at:
                self._checkpoint(connection)
            return result
        finally:
            self._release_lock()

    def peek(self, look: Callable[[Transaction], Result]) -> Result:
        """Run `look` in the writer's thread, without the lock and without a transaction."""
        connection = self._writer_connection()
        try:
            result = look(Transaction(connection, self._writer.queue_cache, self._clock))
        except faults.Trouble as error:
            if self._are_changed(self._writer):
                self.reattach()
            raise self._translate(error) from error
        if self._are_changed(self._writer):
            self.reattach()
        return result

    def read(self, work: Callable[[Transaction], Result], guard: StartGuard) -> Result:
        """Run `work` on one snapshot, in the reader's thread.

        Raises FilesChanged if a file of the store was removed: the writer must `reattach`.
        """
        _take(guard)
        session = self._reader
        with session.in_use:
            if session.generation != self._generation:
                session.clear(self._find())
                session.generation = self._generation
            try:
                connection = session.connection or self._connect_session_reader()
                connection.execute("BEGIN")
                try:
                    result = work(Transaction(connection, session.queue_cache, self._clock))
                finally:
                    connection.execute("ROLLBACK")
            except faults.Trouble as error:
                self._check_unchanged(session)
                raise self._translate(error) from error
            # Afterwards: what was read from a log that was then emptied is not trusted either.
            self._check_unchanged(session)
            return result

    def _connect_session_reader(self) -> apsw.Connection:
        connection = self.connect_reader()
        try:
            self._reader.files = self._attached()
        except BaseException:
            connection.close()
            raise
        self._reader.connection = connection
        return connection

    def reattach(self) -> None:
        """Raise if a file of the store was removed or replaced, and use those at the paths then."""
        self._writer_connection()
        self._acquire_lock()
        try:
            self._check_files()
        finally:
            self._release_lock()

    def connect_reader(self) -> apsw.Connection:
        """Open one more read-only connection; the caller closes it."""
        return connections.connect(self._files, durability=self._durability, vfs=self._vfs)

    def trouble(self) -> list[str]:
        """Problems that an operator should fix although everything still works."""
        found = self._files.trouble() + self._disk.trouble()
        if self.wal.is_long:
            found.append(
                f"the log of {self._path} is {self.wal.pages} pages long, because"
                " a reader has kept its transaction open: end it"
            )
        return found

    def examine(self, now: int, *, deep: bool) -> Examination:
        """Versions, free space and problems; `deep` checks every page, and whether a process uses
        a removed file. Blocks; callable from any thread.
        """
        with contextlib.suppress(StorageFull):
            # Creates the ballast if there is room, so that a new store reports no problems.
            self._disk.check_room(0)
        trouble = self.trouble()
        library = apsw.sqlite_lib_version()
        if tuple(int(part) for part in library.split(".")[:3]) < _SAFE_LIBRARY:
            trouble.append(f"SQLite {library} can damage the file: install a newer apsw")
        return Examination(
            now=now,
            versions={"SQLite": library, "apsw": apsw.apsw_version()},
            free_bytes=self._disk.free_bytes(),
            trouble=tuple(trouble),
            damage=(*self._files.removed_in_use(), *self._find_damage()) if deep else None,
        )

    def _find_damage(self) -> tuple[str, ...]:
        """Read every page on a separate connection, so that other calls continue."""
        try:
            connection = self.connect_reader()
            try:
                found = connection.execute("PRAGMA integrity_check(100)")
                problems = [str(problem) for (problem,) in found]
            finally:
                connection.close()
        except apsw.CorruptError as error:
            return (str(error),)
        except faults.Trouble as error:
            raise faults.before_commit(error) from error
        return () if problems == ["ok"] else tuple(problems)

    def _writer_connection(self) -> apsw.Connection:
        session = self._writer
        if session.generation != self._generation:
            self._clear_writer(self._find())
            session.generation = self._generation
        return session.connection or self._connect_writer()

    def check_caller(self) -> None:
        """Raise if a program's own connection may use a file that is no longer the store's."""
        if self._writer.connection is not None:
            self._check_unchanged(self._writer)
        if self._removed:
            in_process = open_in_process()
            self._removed = set() if in_process is None else self._removed & in_process
        if self._removed:
            raise faults.FilesChanged(
                f"this connection to {self._path} uses a file that was removed: close it, and open"
                " a new one"
            )

    def _find(self) -> FileSet | None:
        """The files at the paths; None if that cannot be told."""
        try:
            return self._files.identify()
        except OSError:
            return None

    def _identify(self) -> FileSet:
        try:
            return self._files.identify()
        except OSError as error:
            raise faults.before_commit(error) from error

    def _are_changed(self, session: Session) -> bool:
        """True if the files at the paths are no longer those that the connection uses."""
        try:
            # One system call instead of three; read before the files are looked for.
            stamp = self._files.stamp()
        except OSError:
            stamp = None
        if stamp is not None and stamp == session.stamp:
            return False
        found = self._identify()
        if session.files is None:
            return found.database is None
        if found == session.files:
            session.stamp = stamp
        return found != session.files

    def _check_unchanged(self, session: Session) -> None:
        if self._are_changed(session):
            raise faults.FilesChanged(f"{self._describe_change(session.files)}: repeat the call")

    def _check_committed(self) -> None:
        """After a commit: raise if another process may not find it. Runs under the lock."""
        if self._are_changed(self._writer):
            text = self._describe_change(self._writer.files)
            raise OutcomeUnknown(f"{text}: the change may be lost, repeat the call")

    def _check_files(self) -> None:
        """Before a transaction: raise if a file was removed or replaced. Runs under the lock.

        First saves what only this process can still read, and connects to the files at the paths.
        """
        session = self._writer
        if not self._are_changed(session):
            return
        found, known = self._identify(), session.files
        assert known is not None
        text = self._describe_change(known)
        if found.database is None:
            # Kept open: the file may have been moved away, and may come back.
            raise faults.FilesChanged(text)
        if found.database != known.database:
            if found.wal == known.wal and self._files.has_log():
                raise faults.FilesChanged(
                    f"{text}, but {self._files.wal} is still the log of the old file: put that"
                    " back, or stop all processes and remove the -wal and -shm files"
                )
            self._clear_sessions()
            self._drop_connections()
            raise faults.FilesChanged(f"{text}: the next call opens the new file")
        try:
            is_saved = self._save_removed_log()
        except faults.Trouble as error:
            raise faults.before_commit(error) from error
        self._removed.update(one for one in known if one is not None and one not in found)
        self._clear_sessions()
        self._drop_connections()
        session.generation = self._generation
        self._prepare_writer(create=False, trusted=True)
        raise faults.FilesChanged(
            f"{text}: {'its commits were saved; ' if is_saved else ''}repeat the call, and never"
            " remove a file beside a database in use"
        )

    def _save_removed_log(self) -> bool:
        """Copy a log that was removed from its path into the database. Runs under the lock.

        Only where no other process can have written since: then the log has all there is. False if
        there was nothing to do; raises EngineUnavailable if a reader keeps the log in use.
        """
        connection, known = self._writer.connection, self._writer.files
        if connection is None or known is None:
            return False
        found = self._files.identify()
        if (
            found.wal == known.wal
            or found.database != known.database
            or found.shm not in (None, known.shm)
            or self._files.has_log()
        ):
            return False
        if not connections.empty_log(connection):
            raise faults.FilesChanged(
                f"{self._describe_change(known)}, and a reader keeps its commits from being saved:"
                " end its transaction, then repeat the call"
            )
        return True

    def _describe_change(self, known: FileSet | None) -> str:
        """Name the first file that is missing or not the one in use."""
        found = self._identify()
        for path, before, now in zip(
            (self._files.database, self._files.wal, self._files.shm),
            known or found,
            found,
            strict=True,
        ):
            if now is None:
                return f"{path} was deleted while in use" + (
                    ": put it back" if path == self._files.database else ""
                )
            if now != before:
                return f"{path} was replaced while in use"
        return f"the files of {self._path} were replaced while in use"

    def _attached(self) -> FileSet:
        """The files that a new connection uses.

        SQLite shares one index file among all connections of a process. Raises if that is not the
        one at the path, because an older connection still uses one that was removed.
        """
        found = self._files.identify()
        in_process = open_in_process()
        if in_process is not None and not in_process.issuperset(found):
            raise faults.FilesChanged(
                f"a file beside {self._path} was removed, and another connection of this process"
                " still uses it: close that connection, or restart the process"
            )
        return found

    def _clear_writer(self, found: FileSet | None) -> None:
        # Unlocked first: whoever finds the bell locked may rely on a connection behind it.
        if self._bell >= 0:
            fcntl.flock(self._bell, fcntl.LOCK_UN)
        self._writer.clear(found)

    def _clear_sessions(self) -> None:
        found = self._find()
        with self._reader.in_use:
            self._reader.clear(found)
        self._clear_writer(found)

    def _check_room(self, grows_bytes: int) -> None:
        try:
            self._disk.check_room(grows_bytes)
        except OSError as error:
            raise faults.before_commit(error) from error

    def _connect_writer(
        self, opening: StartGuard | None = None, *, create: bool = False
    ) -> apsw.Connection:
        """Only opening creates a file: one that is missing later was deleted."""
        self._writer.generation = self._generation
        self._acquire_lock()
        try:
            if opening is not None:
                _take(opening)
            return self._prepare_writer(create=create)
        finally:
            self._release_lock()

    def _prepare_writer(self, *, create: bool, trusted: bool = False) -> apsw.Connection:
        """Connect and migrate. Runs under the lock. `trusted` files may differ from those that
        other processes use, because this process has just saved their commits.
        """
        try:
            self._check_shared_files(create=create, trusted=trusted)
            try:
                return self._attach_writer(create=create)
            except faults.Trouble:
                # Opening needs some space for SQLite's shared memory; without any, SQLite
                # reports an I/O error.
                if not (self._disk.is_exhausted() and self._disk.give_up_ballast()):
                    raise
                self._writer.clear(self._find())
                return self._attach_writer(create=create)
        except BaseException as error:
            # Still under the lock: nobody finds the bell locked without a connection behind it.
            self._clear_writer(self._find())
            if isinstance(error, faults.Trouble):
                raise faults.before_commit(error) from error
            raise

    def _check_shared_files(self, *, create: bool, trusted: bool) -> None:
        """Before connecting: raise if other processes use other files, or if jobs would be lost."""
        # Looked for before the others: a process that leaves unlocks the bell, then removes files.
        found = self._files.identify()
        recorded = self._files.recorded(self._lock)
        if found != recorded:
            # Until connected, so that a kill in between leaves no record of other files.
            self._files.record(self._lock, None)
        if not (trusted or recorded in (None, found) or self._is_alone_soon()):
            self._files.record(self._lock, recorded)
            raise faults.FilesChanged(
                f"a file of {self._path} was removed or replaced while other processes use it:"
                " put it back, or stop them"
            )
        if found.database is None and not create:
            raise EngineUnavailable(f"{self._path} was deleted: put it back")
        self._files.check_log_has_database()

    def _attach_writer(self, *, create: bool) -> apsw.Connection:
        session = self._writer
        # Held while connected, so that `_is_alone` can tell.
        fcntl.flock(self._bell, fcntl.LOCK_SH)
        connection = connections.connect(
            self._files, durability=self._durability, vfs=self._vfs, create=create, writer=True
        )
        session.connection = connection
        session.files = self._attached()
        self._files.record(self._lock, session.files)
        # A log left behind may hold pages that a failed sync never brought to the disk although
        # they can be read: only their synced copy in the database can be relied on.
        self.wal = WriteAheadLog()
        connection.set_wal_hook(_page_counter(self.wal))
        self.wal.truncate(connection)
        self._boot_id = self._clock.boot_id()
        with _immediate(connection):
            schema.prepare(connection, self._namespace, self._boot_id, self._is_alone)
        return connection

    def _is_alone(self) -> bool:
        """True if no other process has this file open. Called only under the lock."""
        try:
            fcntl.flock(self._bell, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            fcntl.flock(self._bell, fcntl.LOCK_SH)
        return True

    def _is_alone_soon(self) -> bool:
        """`_is_alone`, once processes that are just being killed have lost their locks."""
        end = time.monotonic() + _LEAVING_S
        while not self._is_alone():
            if time.monotonic() >= end:
                return False
            time.sleep(_LEAVING_S / 100)
        return True

    def _transact(self, work: Callable[[Transaction], Result]) -> Result:
        session = self._writer
        connection = session.connection
        assert connection is not None
        try:
            connection.execute("BEGIN IMMEDIATE")
            transaction = Transaction(
                connection, session.queue_cache, self._clock, session.lane_cache
            )
            if transaction.boot_id != self._boot_id:
                self._check_boot(transaction.boot_id)
            result = work(transaction)
            if transaction.deferred is not None:
                apply_deferred(transaction)
            transaction.finish()
        except BaseException as error:
            self._roll_back(connection)
            if isinstance(error, faults.Trouble):
                raise self._translate(error) from error
            raise
        try:
            connection.execute("COMMIT")
        except faults.Trouble as error:
            self._roll_back(connection)
            raise self._translate(error, at_commit=True) from error
        if transaction.notifies:
            # Any write to the bell file wakes the processes that watch it.
            with contextlib.suppress(OSError):
                os.pwrite(self._bell, b"\n", 0)
        return result

    def _check_boot(self, stored: str) -> None:
        """Two boot clocks on one file would end each other's leases early or never."""
        self._boot_id = self._clock.boot_id()
        if stored != self._boot_id:
            raise schema.other_boot_clock(self._path)

    def _roll_back(self, connection: apsw.Connection) -> None:
        self._writer.queue_cache.invalidate()
        self._writer.lane_cache.clear()
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except faults.Trouble:
            self._drop_connections()

    def _translate(self, error: BaseException, *, at_commit: bool = False) -> EngineError:
        if not faults.is_harmless(error):
            self._drop_connections()
        return faults.at_commit(error) if at_commit else faults.before_commit(error)

    def _drop_connections(self) -> None:
        """Make every thread reconnect: after a fault, nothing a connection holds is trusted."""
        self._generation += 1

    def _acquire_lock(self) -> None:
        """Lock the lock file, which processes obtain in turn."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            raise faults.before_commit(error) from error

    def _release_lock(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _checkpoint(self, connection: apsw.Connection) -> None:
        try:
            self.wal.checkpoint(connection)
        except faults.Trouble:
            # The change is durable in the log, so the call has succeeded.
            self._drop_connections()

    def _truncate_wal(self, connection: apsw.Connection) -> None:
        try:
            self.wal.truncate(connection)
        except faults.Trouble as error:
            raise self._translate(error) from error


def _take(guard: StartGuard) -> None:
    if not guard.take():
        raise EngineUnavailable("the caller withdrew the call before it started")


def _page_counter(wal: WriteAheadLog) -> Callable[[apsw.Connection, str, int], int]:
    """A WAL hook; it must not refer to the connection, or neither would ever be freed."""

    def count(_connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < wal.pages:
            wal.restart()
        wal.pages = pages
        return apsw.SQLITE_OK

    return count


@contextlib.contextmanager
def _immediate(connection: apsw.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        # Some faults have rolled back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _release_all() -> None:
    for database in list(_open_databases):
        database.release_files()


os.register_at_fork(after_in_child=_release_all)


class StartGuard:
    """Decides once whether a call runs: the thread starts it, or its caller withdraws it."""

    def __init__(self) -> None:
        self._taken = threading.Lock()

    def take(self) -> bool:
        """True for the first taker only."""
        return self._taken.acquire(blocking=False)


Work = Callable[[StartGuard], Any]
Answer = Callable[[Any, BaseException | None], None]
"""Takes the result of a call, or its error."""


class BlockedCaller:
    """A caller that blocks in a thread of its own until its call is answered."""

    __slots__ = ("_answered", "_error", "_result")

    def __init__(self) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._answered = threading.Lock()
        self._answered.acquire()

    def answer(self, result: Any, error: BaseException | None) -> None:
        """Answer the call, once."""
        self._result, self._error = result, error
        self._answered.release()

    def wait(self, timeout_s: float = -1) -> bool:
        """Block until the answer is there; False after the timeout."""
        return self._answered.acquire(timeout=timeout_s)

    def result(self) -> Any:
        """The result of an answered call, or its error, raised."""
        if self._error is not None:
            raise self._error
        return self._result


class SerialThread:
    """One daemon thread with a queue of calls: the writer's or the reader's.

    Only this thread takes calls from the queue, and it answers each of them. The guard of a call is
    taken once: by the work, which then changes the store, or by the caller, which then gives up. No
    lock is held meanwhile, because a signal handler may make or stop calls in the middle of
    another.
    """

    def __init__(self, name: str) -> None:
        self._calls: deque[tuple[Work, StartGuard, Answer]] = deque()
        # True after a call was queued, False to stop. A call may be run before its own signal.
        self._signals: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._stopping = False
        self._is_over = False
        self._last: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def call(
        self,
        work: Callable[[StartGuard], Result],
        *,
        urgent: bool = False,
        orphan: Callable[[Result], None] | None = None,
    ) -> Result:
        """Run `work` in the thread; it takes its guard once it can no longer be withdrawn.

        `orphan` receives a result whose caller was cancelled and will never see it.
        """
        if self._stopping:
            raise _closed()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        guard = StartGuard()
        # A late renewal loses its lease, so urgent calls overtake all waiting ones.
        add = self._calls.appendleft if urgent else self._calls.append
        add((work, guard, partial(_answer_task, future, orphan)))
        self._signals.put(True)
        timer = loop.call_later(START_TIMEOUT_S, _time_out, guard, future)
        try:
            return await future
        except asyncio.CancelledError:
            # The result may have arrived before the cancelled caller could run again.
            answered = future.done() and not future.cancelled() and future.exception() is None
            if answered and orphan is not None:
                orphan(future.result())
            raise
        finally:
            timer.cancel()
            if not future.done() or future.cancelled():
                guard.take()

    def call_blocking(self, work: Callable[[StartGuard], Result]) -> Result:
        """Run `work` as `call` does, and block a thread that has no event loop meanwhile.

        An interrupt, such as Ctrl-C, withdraws a call that has not started.
        """
        if self._stopping:
            raise _closed()
        guard, caller = StartGuard(), BlockedCaller()
        try:
            self._calls.append((work, guard, caller.answer))
            self._signals.put(True)
            # Looked at after the call was queued: a thread that ends later refuses the call itself.
            is_refused = self._is_over and guard.take()
            is_late = not is_refused and not caller.wait(START_TIMEOUT_S)
            is_withdrawn = is_late and guard.take()
            if is_late and not is_withdrawn:
                caller.wait()
        except BaseException:
            guard.take()
            raise
        if is_refused:
            raise _closed()
        if is_withdrawn:
            raise _timed_out()
        result: Result = caller.result()
        return result

    def stop(self, last: Callable[[], None] | None = None) -> None:
        """Accept no more calls; run the waiting ones, then `last`, however long a lock takes."""
        self._stopping = True
        self._last = last
        self._signals.put(False)

    async def end(self, last: Callable[[], None], timeout_s: float = START_TIMEOUT_S) -> bool:
        """Stop, and wait until `last` has run; False if the thread still waits for a lock.

        Uses no other thread to wait: Python 3.12 starts none while the interpreter exits.
        """
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def finish() -> None:
            try:
                last()
            finally:
                # After the timeout the loop may be closed.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(ended.set)

        self.stop(finish)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await ended.wait()
        return ended.is_set() and self.join()

    def join(self, timeout_s: float | None = None) -> bool:
        """Block until the thread has ended; False if it still waits for a lock."""
        self._thread.join(START_TIMEOUT_S if timeout_s is None else timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self._signals.get():
            while self._calls:
                _execute(*self._calls.popleft())
        # A caller in another thread may have queued its call too late to be run.
        self._is_over = True
        while self._calls:
            _, _, answer = self._calls.popleft()
            answer(None, _closed())
        if self._last is not None:
            self._last()


def _execute(work: Work, guard: StartGuard, answer: Answer) -> None:
    try:
        result, error = work(guard), None
    except BaseException as raised:  # noqa: BLE001 - the caller raises it
        result, error = None, raised
    answer(result, error)


def _answer_task(
    future: asyncio.Future[Any],
    orphan: Callable[[Any], None] | None,
    result: Any,
    error: BaseException | None,
) -> None:
    """Answer a caller on its event loop."""
    try:  # noqa: SIM105 - suppress() would cost as much as the call
        future.get_loop().call_soon_threadsafe(_resolve, future, result, error, orphan)
    except RuntimeError:
        pass  # The loop is closed, so no caller waits for the result.


def _resolve(
    future: asyncio.Future[Any],
    result: Any,
    error: BaseException | None,
    orphan: Callable[[Any], None] | None,
) -> None:
    if future.done():
        if error is None and orphan is not None:
            orphan(result)
    elif error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _time_out(guard: StartGuard, future: asyncio.Future[Any]) -> None:
    if guard.take() and not future.done():
        future.set_exception(_timed_out())


def _timed_out() -> EngineUnavailable:
    text = f"no write within {START_TIMEOUT_S:.0f} s: another process holds the lock"
    return EngineUnavailable(f"{text}; nothing was changed")


def _closed() -> EngineClosed:
    return EngineClosed("the engine is closed: open it again")
