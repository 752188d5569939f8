"""Enqueue and settle inside a program's own transaction, on its own apsw connection.

Only apsw: when a second SQLite library in the process, such as the standard library's, closes the
file, it drops the locks of the first one, and commits are lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import apsw

from holdfast.core import checks
from holdfast.core.model import NewJob, Receipt
from holdfast.core.verdict import Outcome, Settlement
from holdfast.engines.clock import Clock
from holdfast.engines.sqlite import enqueue, faults, settle
from holdfast.engines.sqlite.files import Disk, Files
from holdfast.engines.sqlite.flow.effects import apply_deferred
from holdfast.engines.sqlite.transaction import QueueCache, Transaction
from holdfast.errors import UsageError

Result = TypeVar("Result")


class SQLiteWithin:
    """Enqueues and settles in the caller's transaction: the calls take effect if it is
    committed.
    """

    def __init__(
        self,
        connection: apsw.Connection,
        *,
        files: Files,
        check_files: Callable[[], None],
        disk: Disk,
        clock: Clock,
        namespace: str,
    ) -> None:
        _check(connection, files)
        self._connection = connection
        self._check_files = check_files
        self._disk = disk
        self._clock = clock
        self._queue_cache = QueueCache(namespace)

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """See `Engine.enqueue`."""
        checks.check_batch(len(jobs))
        grows_bytes = sum(len(job.payload) for job in jobs)

        def work(transaction: Transaction) -> list[Receipt]:
            self._disk.check_room(grows_bytes)
            return enqueue.enqueue(transaction, jobs)

        return self._run(work)

    def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        """See `Engine.settle`."""
        checks.check_batch(len(settlements))
        return self._run(lambda transaction: settle.settle(transaction, settlements))

    def _run(self, work: Callable[[Transaction], Result]) -> Result:
        connection = self._connection
        try:
            if not connection.in_transaction:
                raise UsageError(
                    "no transaction is open on the connection: BEGIN IMMEDIATE first, COMMIT after"
                )
            self._check_files()
            with _savepoint(connection):
                # Never reused: the caller may roll back what was read.
                self._queue_cache.invalidate()
                transaction = Transaction(connection, self._queue_cache, self._clock)
                result = work(transaction)
                if transaction.deferred is not None:
                    apply_deferred(transaction)
                transaction.finish()
                return result
        except apsw.ConnectionClosedError:
            raise UsageError("the connection is closed: open one to the engine's file") from None
        except faults.Trouble as error:
            raise faults.before_commit(error) from error


@contextmanager
def _savepoint(connection: apsw.Connection) -> Iterator[None]:
    """Undo a call that fails halfway, without ending the caller's transaction."""
    # The program's own row format must not apply to our rows.
    row_trace, connection.row_trace = connection.row_trace, None
    try:
        connection.execute("SAVEPOINT holdfast")
        try:
            yield
        except BaseException:
            # A full disk, for example, has already rolled back the program's whole transaction.
            if connection.in_transaction:
                connection.execute("ROLLBACK TO holdfast")
                connection.execute("RELEASE holdfast")
            raise
        connection.execute("RELEASE holdfast")
    finally:
        connection.row_trace = row_trace


def _check(connection: object, files: Files) -> None:
    if not isinstance(connection, apsw.Connection):
        kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
        raise UsageError(
            f"within() takes an apsw.Connection, not {kind}: two SQLite libraries on one file in"
            " one process lose commits, because closing either one drops the other's locks"
        )
    try:
        filename = connection.filename
    except apsw.ConnectionClosedError:
        raise UsageError("the connection is closed: open one to the engine's file") from None
    if not filename or os.path.realpath(filename) != str(files.database):
        raise UsageError(
            f"the connection is to {filename or 'no file'}, the engine's file is"
            f" {files.database}: open it with apsw.Connection({str(files.database)!r})"
        )
