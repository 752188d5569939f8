"""Enqueue and settle inside a program's own transaction, on its own apsw connection.

Only apsw: a second SQLite library in one process, such as the standard library's, lets go of the
locks of the first one when it closes the file, and commits are lost.
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
from holdfast.engines.sqlite.catalog import Catalog
from holdfast.engines.sqlite.disk import Disk
from holdfast.engines.sqlite.files import Files
from holdfast.engines.sqlite.unit import Unit
from holdfast.errors import UsageError

Result = TypeVar("Result")


class Within:
    """What is done here becomes true, or does not, when the caller commits or rolls back."""

    def __init__(
        self,
        connection: apsw.Connection,
        *,
        files: Files,
        disk: Disk,
        clock: Clock,
        namespace: str,
    ) -> None:
        _check(connection, files)
        self._connection = connection
        self._disk = disk
        self._clock = clock
        self._catalog = Catalog(namespace)

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        checks.check_batch(len(jobs))
        grows_bytes = sum(len(job.payload) for job in jobs)

        def work(unit: Unit) -> list[Receipt]:
            self._disk.check_room(grows_bytes)
            return enqueue.enqueue(unit, jobs)

        return self._run(work)

    def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        checks.check_batch(len(settlements))
        return self._run(lambda unit: settle.settle(unit, settlements))

    def _run(self, work: Callable[[Unit], Result]) -> Result:
        connection = self._connection
        try:
            if not connection.in_transaction:
                raise UsageError(
                    "no transaction is open on the connection: BEGIN IMMEDIATE first, COMMIT after"
                )
            with _all_or_nothing(connection):
                # Never kept: what was read may be rolled back by the caller.
                self._catalog.distrust()
                unit = Unit(connection, self._catalog, self._clock)
                result = work(unit)
                unit.finish()
                return result
        except apsw.ConnectionClosedError:
            raise UsageError("the connection is closed: open one to the engine's file") from None
        except faults.Trouble as error:
            raise faults.before_commit(error) from error


@contextmanager
def _all_or_nothing(connection: apsw.Connection) -> Iterator[None]:
    """A call that fails half-way leaves nothing behind in a transaction that goes on."""
    # Rows must come as they are stored, however the program likes its own.
    shape, connection.row_trace = connection.row_trace, None
    try:
        connection.execute("SAVEPOINT holdfast")
        try:
            yield
        except BaseException:
            # A full disk, for one, has rolled back the program's whole transaction already.
            if connection.in_transaction:
                connection.execute("ROLLBACK TO holdfast")
                connection.execute("RELEASE holdfast")
            raise
        connection.execute("RELEASE holdfast")
    finally:
        connection.row_trace = shape


def _check(connection: object, files: Files) -> None:
    if not isinstance(connection, apsw.Connection):
        kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
        raise UsageError(
            f"within() takes an apsw.Connection, not {kind}: two SQLite libraries on one file in"
            " one process lose commits, because either one's close drops the other's locks"
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
