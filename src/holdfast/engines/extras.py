"""Optional abilities of engines beyond the verbs of `Engine`, each a small protocol.

`extra(engine, Ability)` finds one, through any wrappers around the engine. An engine has an
ability by having its methods; a wrapper forwards those of the engine inside, or replaces them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

import msgspec
from msgspec.structs import replace

from holdfast.core.model import Job, JobFilter, Page, QueueView
from holdfast.core.transfer import Mover

if TYPE_CHECKING:
    from holdfast.engines.base import Engine
    from holdfast.engines.broker import Broker

Ability = TypeVar("Ability")


def extra(engine: object, ability: type[Ability]) -> Ability | None:
    """The object that has this ability for the engine; None if there is none."""
    if isinstance(engine, ForwardsExtras):
        return engine.find_extra(ability)
    return engine if isinstance(engine, ability) else None


@runtime_checkable
class ForwardsExtras(Protocol):
    """A wrapper, which finds extras for the engine inside."""

    def find_extra(self, ability: type[Ability]) -> Ability | None:
        """The object that has this ability for the wrapped engine; None if there is none."""


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's report on itself: its clock, software versions, free disk space, problems for an
    operator to fix, and damage found (None if it did not check).
    """

    now: int
    versions: dict[str, str] = {}
    free_bytes: int | None = None
    trouble: tuple[str, ...] = ()
    damage: tuple[str, ...] | None = None


@runtime_checkable
class Examinable(Protocol):
    """Can report on its own state."""

    async def examine(self, *, deep: bool = False) -> Examination:
        """With `deep` also read everything that is stored, looking for damage."""


class PartitionView(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one partition. `out_ms` is how long it has been shut out; None if in use."""

    name: str
    waiting: int
    out_ms: int | None = None
    code: str = ""
    text: str = ""


@runtime_checkable
class Partitioned(Protocol):
    """Consists of several stores."""

    def partitions(self) -> list[PartitionView]:
        """The state of each, in the order of the partition map."""


@runtime_checkable
class UpkeepByPartition(Protocol):
    """Consists of several stores, each with upkeep of its own."""

    def lifecycles(self) -> Sequence[Engine]:
        """An engine for the upkeep of each, limited to its jobs: a partition that is stuck delays
        only its own."""


@runtime_checkable
class IdMinting(Protocol):
    """Chooses the ids of jobs that have none, and so the place where they are stored."""

    def mint(self) -> str:
        """A new job id."""

    def mint_instead(self, id: str) -> str | None:
        """A new job id, if one like `id` was refused because its partition is shut out, and another
        partition is in use; None if it would be refused again."""


@runtime_checkable
class FileBacked(Protocol):
    """Is stored in files that may not exist yet."""

    def missing(self, *, creating: bool = False) -> str:
        """The file or folder that `open` would have to create, in words; "" if all exists. With
        `creating` a missing file is fine, a missing folder is not. Blocks on the disk."""

    async def reopen(self) -> None:
        """Open, but never create a file that has disappeared."""


@runtime_checkable
class SchemaBacked(Protocol):
    """Is stored in a schema of a database server, which may not exist yet."""

    async def missing_schema(self) -> str:
        """The schema that `open` would have to create, in words; "" if it exists."""


@runtime_checkable
class Backable(Protocol):
    """Can copy itself while in use."""

    async def backup(self, path: str | os.PathLike[str]) -> None:
        """Write a consistent copy to a new file."""


@runtime_checkable
class Countable(Protocol):
    """Can count the jobs of its queues further than `Engine.queues` does."""

    async def count_far(self, names: Collection[str], *, most: int) -> list[QueueView]:
        """The queues of `names` that exist, sorted by name, with counts exact up to `most`. It may
        read that many index entries for each count, so call it rarely."""


@runtime_checkable
class Revisioned(Protocol):
    """Knows at little cost whether anything was written."""

    async def revision(self) -> str | None:
        """A text that stays the same only as long as nothing is written to the store, by any
        process; None if that is unknown. Read it before what it shall vouch for."""

    async def count_revision(self) -> str | None:
        """The same for the settings and counts of queues: saving a record does not change it.
        Counts that change only because time passes do not change it either. On PostgreSQL most
        changes show at once, and some only after ten seconds."""


@runtime_checkable
class ListsRows(Protocol):
    """Can list jobs without reading their payloads."""

    async def find_rows(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        """The page that `Engine.find` returns, with empty payloads."""


async def find_rows(
    engine: Engine, wanted: JobFilter, *, limit: int, after: int | None = None
) -> Page:
    """A page of jobs with empty payloads. They are not read, if the engine can avoid it."""
    lists_rows = extra(engine, ListsRows)
    if lists_rows is not None:
        return await lists_rows.find_rows(wanted, limit=limit, after=after)
    page = await engine.find(wanted, limit=limit, after=after)
    return replace(page, jobs=tuple(replace(job, payload=b"") for job in page.jobs))


class DeadLetterMove(msgspec.Struct, frozen=True, kw_only=True):
    """A task of the store that moves the dead letters of a queue back, at most `rate` a second.
    `moved` and `left` are estimates; `text` says why it failed."""

    queue: str
    state: Literal["running", "finished", "cancelled", "failed"]
    moved: int
    left: int
    started_at: int
    rate: int | None = None
    text: str = ""


@runtime_checkable
class DeadLetterQueues(Protocol):
    """Keeps the dead letters of each queue in a message queue, which cannot be searched: they are
    sampled, and moved back or deleted all together. Each call raises UnknownQueue."""

    async def sample_dead(self, queues: Collection[str] | None, *, limit: int) -> list[Job]:
        """At most `limit` dead letters of these queues, or of all, in no order. They are hidden
        from others while they are read, and each counts as received once more."""

    async def move_dead(self, queue: str, *, rate: int | None) -> DeadLetterMove:
        """Start to move all dead letters of a queue back to the queue in which they died. Raises
        Unsupported if they come from several queues."""

    async def dead_moves(self, queues: Collection[str] | None) -> list[DeadLetterMove]:
        """The last move of each of these queues, or of all, by name."""

    async def cancel_dead_move(self, queue: str) -> DeadLetterMove | None:
        """Cancel the move of a queue; letters that were moved stay. None if there was none."""

    async def purge_dead(self, queue: str) -> None:
        """Delete all dead letters of a queue, also those that are being handled."""


@runtime_checkable
class ArrivalRates(Protocol):
    """Knows how many jobs arrive, also those of programs that are not Holdfast's."""

    async def arrivals(self, names: Collection[str]) -> dict[str, float]:
        """Jobs per second by queue, over the last minutes; a queue whose rate is unknown is left
        out."""


@runtime_checkable
class Movable(Protocol):
    """Can export and import whole jobs."""

    def mover(self) -> Mover:
        """Raw access to the stored jobs."""


@runtime_checkable
class Transactional(Protocol):
    """Can work inside a transaction of the caller."""

    def within(self, connection: Any) -> Any:
        """An object with `enqueue` and `settle` that take effect when the caller commits."""


@runtime_checkable
class Wakeable(Protocol):
    """Has leases that wait, and can be told from outside that jobs may be due."""

    def wake(self) -> None:
        """Make the waiting leases look again. Called on the event loop's thread."""

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever a call of this engine object may have made a job due."""


@runtime_checkable
class Brokered(Protocol):
    """Has a broker beside its store."""

    def broker(self) -> Broker:
        """The broker, for the dead-letter handler and for checks."""


@runtime_checkable
class ServerBacked(Protocol):
    """Reaches its store through a Holdfast server."""

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Call a REST operation of the server: JSON in and out."""
