"""The transactions: who may write when, and what a fault does to the connections.

Writers of all processes line up at a lock file of ours, which is fair, before they meet SQLite's
own lock, which is not. Each method is called from the one thread that owns its connection.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar

import apsw

from holdfast.engines.clock import Clock
from holdfast.engines.sqlite import faults, presence, schema
from holdfast.engines.sqlite.catalog import Catalog
from holdfast.engines.sqlite.connection import Durability, connect
from holdfast.engines.sqlite.disk import Disk
from holdfast.engines.sqlite.files import Files, Identity
from holdfast.engines.sqlite.log import Log
from holdfast.engines.sqlite.picture import Picture
from holdfast.engines.sqlite.threads import Turn
from holdfast.engines.sqlite.unit import Unit
from holdfast.errors import EngineError, EngineUnavailable, StorageFull

Result = TypeVar("Result")

_open_stores: weakref.WeakSet[Store] = weakref.WeakSet()


class Desk:
    """One connection and what it last read of the queues; made anew after a fault."""

    def __init__(self, namespace: str) -> None:
        self.catalog = Catalog(namespace)
        self.picture = Picture()
        self.connection: apsw.Connection | None = None
        self.identity: Identity | None = None
        self.generation = -1

    def clear(self) -> None:
        connection, self.connection = self.connection, None
        self.catalog.distrust()
        self.picture.clear()
        if connection is not None:
            with contextlib.suppress(*faults.Trouble):
                connection.close()


class Store:
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
        self.files = files
        self.disk = disk
        self._clock = clock
        self._namespace = namespace
        self._durability = durability
        self._vfs = vfs
        self._writer = Desk(namespace)
        self._reader = Desk(namespace)
        self._lock = -1
        self._bell = -1
        self._boot_id = ""
        self._generation = 0
        self.log = Log()

    def open(self, turn: Turn, *, create: bool = True) -> None:
        """Create or check the files; it may be withdrawn until the lock is obtained."""
        try:
            self.files.prepare()
            if not self.files.lock.exists():
                # Nothing is laid beside a file that was never ours and never can be.
                presence.has_tables(self.files, self._vfs)
            self._lock = self.files.open_private(self.files.lock)
            self._bell = self.files.open_private(self.files.bell)
            _open_stores.add(self)
        except OSError as error:
            raise faults.before_commit(error) from error
        self._connect_writer(turn, create=create)

    def missing(self, *, creating: bool) -> str:
        return presence.missing(self.files, self._vfs, creating=creating)

    def close(self) -> None:
        self._reader.clear()
        self._writer.clear()
        self.let_go()

    def let_go(self) -> None:
        """Of our own locks. A forked child must: what it inherited outlives a killed parent."""
        _open_stores.discard(self)
        for descriptor in (self._lock, self._bell):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock = self._bell = -1

    def write(
        self, work: Callable[[Unit], Result], turn: Turn, *, grows_bytes: int | None = None
    ) -> Result:
        """Run `work` in one transaction, unless its caller has left in the meantime.

        What grows the store must leave the disk its floor, and never uses the ballast.
        """
        connection = self._check_writer()
        if grows_bytes is not None:
            self._check_room(grows_bytes)
        with self._exclusively():
            _begin(turn)
            try:
                result = self._transact(work)
            except StorageFull:
                if grows_bytes is None:
                    self.disk.give_up_ballast()
                # A log that took up the last of the space gives it back.
                self._shorten(connection)
                if grows_bytes is not None:
                    raise
                result = self._transact(work)
            try:
                self.log.checkpoint_if_due(connection)
            except faults.Trouble:
                # The change is already safe in the log, and its caller is told so.
                self._drop()
            return result

    def peek(self, look: Callable[[Unit], Result]) -> Result:
        """Look from the writer's thread without the lock and without a transaction."""
        connection = self._check_writer()
        try:
            return look(Unit(connection, self._writer.catalog, self._clock))
        except faults.Trouble as error:
            raise self._troubled(error) from error

    def read(self, work: Callable[[Unit], Result], turn: Turn) -> Result:
        """Run `work` on one snapshot, from the reader's thread."""
        _begin(turn)
        desk = self._reader
        self._check_same(desk)
        try:
            if desk.connection is None:
                # First: of a file that is replaced in between, the next call finds out.
                desk.identity = self.files.identity()
                desk.connection = self.connect_aside()
            connection = desk.connection
            connection.execute("BEGIN")
            try:
                return work(Unit(connection, desk.catalog, self._clock))
            finally:
                connection.execute("ROLLBACK")
        except faults.Trouble as error:
            raise self._troubled(error) from error

    def connect_aside(self) -> apsw.Connection:
        """A connection of the caller's own, for something long."""
        return connect(self.files, durability=self._durability, vfs=self._vfs)

    def trouble(self) -> list[str]:
        """What a person should know although everything still works."""
        found = self.files.trouble() + self.disk.trouble()
        if self.log.is_long:
            found.append(
                f"the log of {self.files.database} is {self.log.pages} pages long, because"
                " a reader has kept its transaction open: end it"
            )
        return found

    def _check_writer(self) -> apsw.Connection:
        self._check_same(self._writer)
        return self._writer.connection or self._connect_writer()

    def _check_same(self, desk: Desk) -> None:
        if desk.generation != self._generation:
            desk.clear()
            desk.generation = self._generation
        try:
            found = self.files.identity() if desk.connection is None else desk.identity
            self.files.check_same(found)
        except OSError as error:
            raise faults.before_commit(error) from error
        except EngineUnavailable:
            self._drop()
            raise

    def _check_room(self, grows_bytes: int) -> None:
        try:
            self.disk.check_room(grows_bytes)
        except OSError as error:
            raise faults.before_commit(error) from error

    def _connect_writer(
        self, opening: Turn | None = None, *, create: bool = False
    ) -> apsw.Connection:
        """Only opening creates a file: one that is gone later was deleted."""
        desk = self._writer
        desk.generation = self._generation
        try:
            with self._exclusively():
                if opening is not None:
                    _begin(opening)
                    # Held while this store is open, so that others can tell: see `_is_alone`.
                    fcntl.flock(self._bell, fcntl.LOCK_SH)
                try:
                    connection = self._prepare_writer(create=create)
                except faults.Trouble:
                    # Even to open takes some space, for what SQLite shares between processes;
                    # without any, it calls that an I/O error.
                    if not (self.disk.is_exhausted() and self.disk.give_up_ballast()):
                        raise
                    desk.clear()
                    connection = self._prepare_writer(create=create)
        except BaseException as error:
            desk.clear()
            if isinstance(error, faults.Trouble):
                raise faults.before_commit(error) from error
            raise
        return connection

    def _prepare_writer(self, *, create: bool) -> apsw.Connection:
        desk = self._writer
        desk.identity = self.files.identity()
        connection = connect(
            self.files, durability=self._durability, vfs=self._vfs, create=create, writer=True
        )
        desk.connection = connection
        if desk.identity is None:
            desk.identity = self.files.identity()
        # A log left behind may hold what a failed sync never brought to the disk though
        # it can be read: only its copy into the database, synced, can be built upon.
        self.log = Log(connection)
        self.log.shorten(connection)
        self._boot_id = self._clock.boot_id()
        with _immediate(connection):
            schema.prepare(connection, self._namespace, self._boot_id, self._is_alone)
        return connection

    def _is_alone(self) -> bool:
        """Has nobody else this store open? Asked under the lock, where no other asks or opens."""
        try:
            fcntl.flock(self._bell, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            fcntl.flock(self._bell, fcntl.LOCK_SH)
        return True

    def _transact(self, work: Callable[[Unit], Result]) -> Result:
        desk = self._writer
        connection = desk.connection
        assert connection is not None
        try:
            connection.execute("BEGIN IMMEDIATE")
            unit = Unit(connection, desk.catalog, self._clock, desk.picture)
            self._check_boot(unit)
            result = work(unit)
            unit.finish()
        except BaseException as error:
            self._undo(connection)
            if isinstance(error, faults.Trouble):
                raise self._troubled(error) from error
            raise
        try:
            connection.execute("COMMIT")
        except faults.Trouble as error:
            self._undo(connection)
            raise self._troubled(error, at_commit=True) from error
        if unit.rings:
            # One byte is news enough for whoever watches the file.
            with contextlib.suppress(OSError):
                os.pwrite(self._bell, b"\n", 0)
        return result

    def _check_boot(self, unit: Unit) -> None:
        """Two boot clocks on one file would end each other's leases early or never."""
        if unit.boot_id != self._boot_id:
            self._boot_id = self._clock.boot_id()
            if unit.boot_id != self._boot_id:
                raise EngineUnavailable(
                    f"{self.files.database} is in use by a process in another time namespace:"
                    " run all its users on one boot clock"
                )

    def _undo(self, connection: apsw.Connection) -> None:
        self._writer.catalog.distrust()
        self._writer.picture.clear()
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except faults.Trouble:
            self._drop()

    def _troubled(self, error: BaseException, *, at_commit: bool = False) -> EngineError:
        if not faults.is_harmless(error):
            self._drop()
        return faults.at_commit(error) if at_commit else faults.before_commit(error)

    def _drop(self) -> None:
        """After a fault nothing that a connection holds can be believed: all are made anew."""
        self._generation += 1

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[None]:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            raise faults.before_commit(error) from error
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _shorten(self, connection: apsw.Connection) -> None:
        try:
            self.log.shorten(connection)
        except faults.Trouble as error:
            raise self._troubled(error) from error


def _begin(turn: Turn) -> None:
    if not turn.take():
        raise EngineUnavailable("the caller did not wait for its turn")


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


def _let_all_go() -> None:
    for store in list(_open_stores):
        store.let_go()


os.register_at_fork(after_in_child=_let_all_go)
