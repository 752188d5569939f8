"""A call as a conversation with the database: it asks, is answered with rows, and returns.

What is written so runs unchanged on the engine's own connections and on a caller's, blocking or
not. Nothing here or in such a conversation does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

Row: TypeAlias = Sequence[Any]
T = TypeVar("T")

STATEMENT_BYTES_MAX = 8 * 1024 * 1024
"""What is sent with one statement: the server keeps several copies of it in memory."""


class Ask(NamedTuple):
    """One statement, with `$schema` for the schema's name and `$1` … for the values.

    `alone`: it may commit by itself, because nothing written before or after depends on it.
    """

    statement: str
    values: tuple[Any, ...] = ()
    alone: bool = False


Steps: TypeAlias = Generator[Ask, Sequence[Row], T]


class Again(Exception):
    """The world changed between two statements: roll back and begin anew."""


class Duties:
    """What a conversation leaves to be done, and what it learned for the next one."""

    def __init__(self, laned: set[str] | None = None, flowing: set[str] | None = None) -> None:
        self.endings: list[int] = []
        """Ends of parents that their children are to be told of."""
        self.committed: list[int] = []
        """The same, of what stays ended even if the conversation begins anew."""
        self.is_in_part = False
        """A statement of it has committed something for good: if the rest fails, nobody may say
        that nothing was changed."""
        self.locks = False
        """It turned out that the flow has to be held: begin with that."""
        self.is_final = False
        """It cannot begin anew: what may turn out has to be looked at first."""
        self.laned = set() if laned is None else laned
        """Queues that were seen to have lanes: only a hint."""
        self.flowing = set() if flowing is None else flowing
        """Queues whose jobs were seen to have a flow when they ended: only a hint too."""


class Store(NamedTuple):
    """Where the jobs are: the number of the namespace, and a test's clock if there is one."""

    ns: int
    clock_ms: Callable[[], int] | None
    duties: Duties

    @property
    def given_ms(self) -> int | None:
        """The instant to use; None lets the server read its own clock."""
        return None if self.clock_ms is None else self.clock_ms()


def portions(whole: Iterable[T], bytes_of: Callable[[T], int]) -> Iterator[list[T]]:
    """All of it in order, in lists that one statement each can carry."""
    portion: list[T] = []
    total = 0
    for part in whole:
        size = bytes_of(part)
        if portion and total + size > STATEMENT_BYTES_MAX:
            yield portion
            portion, total = [], 0
        portion.append(part)
        total += size
    if portion:
        yield portion


def only(rows: Sequence[Row]) -> Any:
    """The single value of an answer."""
    return rows[0][0]
