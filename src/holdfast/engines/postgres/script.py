"""Calls to the database written as generators: a script yields statements, is sent their rows and
returns a result.

The same script runs on the engine's own connections and on a caller's, blocking or async. Neither
this module nor a script does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

Row: TypeAlias = Sequence[Any]
T = TypeVar("T")

STATEMENT_BYTES_MAX = 8 * 1024 * 1024
"""Maximum bytes sent with one statement: the server holds several copies of them in memory."""


class Statement(NamedTuple):
    """SQL with `$schema` for the schema's name and `$1` … for the values.

    `alone`: it may be committed separately, because nothing written before or after depends on it.
    `any_version`: it does not fail on a schema of another version.
    """

    text: str
    values: tuple[Any, ...] = ()
    alone: bool = False
    any_version: bool = False


Script: TypeAlias = Generator[Statement, Sequence[Row], T]


class Restart(Exception):
    """Another call changed something between two statements: roll back and run the script again."""


class Effects:
    """Work that a script leaves to the engine, and hints for its next run and for later calls."""

    def __init__(self, laned: set[str] | None = None, flowing: set[str] | None = None) -> None:
        self.endings: list[int] = []
        """Endings of parents of which the children must still be notified."""
        self.committed: list[int] = []
        """The same, for endings that are committed even if the script starts again."""
        self.is_in_part = False
        """A statement has committed: if the rest fails, the error must not say that nothing was
        changed."""
        self.is_cautious = False
        """A statement that writes rows before it holds all of them has failed: lock them first in
        the next run."""
        self.locks = False
        """The script needs the flow locks: take them first in the next run."""
        self.queues: set[str] = set()
        """Queues that the script turned out to need: lock them first in the next run."""
        self.is_final = False
        """The script cannot be restarted, so it must look before it locks."""
        self.laned: set[str] = set() if laned is None else laned
        """Queues that had lanes when last seen. Only a hint."""
        self.flowing: set[str] = set() if flowing is None else flowing
        """Queues whose jobs had flow control when they were last completed. Only a hint."""


class CallContext(NamedTuple):
    """The namespace's number, the clock of a test if there is one, and the effects of the call."""

    ns: int
    clock_ms: Callable[[], int] | None
    effects: Effects

    @property
    def given_ms(self) -> int | None:
        """The instant to use; None lets the server read its own clock."""
        return None if self.clock_ms is None else self.clock_ms()


def chunks(values: Iterable[T], bytes_of: Callable[[T], int]) -> Iterator[list[T]]:
    """The values in order, in lists that each fit into one statement."""
    chunk: list[T] = []
    total = 0
    for value in values:
        size = bytes_of(value)
        if chunk and total + size > STATEMENT_BYTES_MAX:
            yield chunk
            chunk, total = [], 0
        chunk.append(value)
        total += size
    if chunk:
        yield chunk


def only_value(rows: Sequence[Row]) -> Any:
    """The value of an answer of one row and one column."""
    return rows[0][0]
