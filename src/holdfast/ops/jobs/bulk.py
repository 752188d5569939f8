"""Act on many jobs: walk, count, delete and archive them in bounded batches.

The walk goes from the newest job on with a cursor, so that a job which matches again, such as one
that died right after it was retried, is not processed twice.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.core import bounds
from holdfast.core.codec import encode_job
from holdfast.core.model import Job, JobFilter, NewJob, State
from holdfast.core.text import counted, not_written
from holdfast.core.verdict import Delete
from holdfast.engines.base import Engine, unknown_if_partial
from holdfast.errors import StorageFull, UsageError
from holdfast.notation.filters import chosen_states
from holdfast.notation.options import checked_filter
from holdfast.ops.settings import read_settings

BATCH = 200
_BATCH_FIRST = 16
_BYTES_AIM = 16 * 1024 * 1024
"""Jobs are read with their payloads: a thousand of them could be a gigabyte."""

_ENQUEUE_BYTES = 8 * 1024 * 1024
"""Payloads that one enqueue holds, about."""

_ARCHIVE_BATCH = 100
"""Jobs are archived with their output and events, which may be large too."""

_FINISHED = tuple(state for state in State if state.finished)

OnProgress = Callable[[int], None]
"""Gets the number of jobs that were processed since the last call."""


def ignore_progress(_count: int) -> None:
    """The default `advance` callback."""


class JobCount(NamedTuple):
    """A number of jobs; with `more` it is a lower bound."""

    number: int
    more: bool = False

    def __str__(self) -> str:
        least = "at least " if self.more else ""
        return f"{least}{counted(self.number, 'job')}"


class ArchiveResult(NamedTuple):
    """The number of jobs that were deleted, and of those written to the archive before."""

    deleted: int = 0
    archived: int = 0


class Cleaned(msgspec.Struct, frozen=True, kw_only=True):
    """`found` finished jobs were old enough, a lower bound with `more`."""

    found: int
    more: bool
    deleted: int


def enqueue_batches(jobs: Iterable[NewJob]) -> Iterator[list[NewJob]]:
    """The jobs in batches that an engine accepts, each of a few megabytes at most."""
    batch: list[NewJob] = []
    size = 0
    for job in jobs:
        if batch and (len(batch) >= bounds.BATCH_MAX or size + len(job.payload) > _ENQUEUE_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(job)
        size += len(job.payload)
    if batch:
        yield batch


async def job_batches(
    engine: Engine, wanted: JobFilter, size: int = BATCH, *, most: int | None = None
) -> AsyncIterator[tuple[Job, ...]]:
    """Every match, newest first, or `most` of them; smaller batches where payloads are large."""
    wanted = checked_filter(wanted)
    after: int | None = None
    limit = min(size, _BATCH_FIRST)
    left = most
    while left is None or left > 0:
        limit = limit if left is None else min(limit, left)
        page = await engine.find(wanted, limit=limit, after=after)
        if page.jobs:
            yield page.jobs
        after = page.after
        if after is None:
            return
        left = None if left is None else left - len(page.jobs)
        page_bytes = sum(len(job.payload) for job in page.jobs)
        grown = max(1, limit * _BYTES_AIM // page_bytes) if page_bytes > _BYTES_AIM else limit * 2
        limit = min(grown, size)


async def count_jobs(engine: Engine, wanted: JobFilter, *, most: int | None = None) -> JobCount:
    """The number of matches, up to `most` or the bound of a scan."""
    tallies = await engine.tally(checked_filter(wanted), "state", limit=bounds.PAGE_MAX)
    number = sum(tally.count for tally in tallies)
    if most is not None and number > most:
        return JobCount(most, more=True)
    return JobCount(number, more=number >= bounds.SCAN_MAX)


async def delete_jobs(
    engine: Engine,
    wanted: JobFilter,
    *,
    force: bool = False,
    most: int | None = None,
    advance: OnProgress = ignore_progress,
) -> int:
    """Delete every match, or `most` of them, oldest first, and return how many were deleted.

    Each batch is one transaction. A deleted job no longer matches, so no job has to be read first.
    """
    wanted = checked_filter(wanted)
    deleted = 0
    with unknown_if_partial(lambda: deleted):
        while most is None or deleted < most:
            limit = BATCH if most is None else min(BATCH, most - deleted)
            changed = await engine.amend(wanted, Delete(force=force), limit=limit)
            if not changed:
                break
            deleted += changed
            advance(changed)
    return deleted


async def old_jobs(
    engine: Engine,
    days: float | None,
    state: Iterable[str] | None,
    queue: str | None,
    *,
    dead: bool = False,
) -> JobFilter:
    """The filter for jobs that finished at least `days` ago, by default as the setting
    `cleanup-days` says: in these states, or done and cancelled ones. `dead` adds dead letters."""
    if days is None:
        days = float((await read_settings(engine)).value_or_default("cleanup-days"))
    states = chosen_states(state).states
    if states is not None and not all(each.finished for each in states):
        raise UsageError("only finished jobs are cleaned up: done, dead or cancelled")
    if not 0 <= days <= bounds.RETENTION_MS_MAX / bounds.DAY_MS:
        raise UsageError(
            f"days {days:g} is out of range: expected 0 to"
            f" {bounds.RETENTION_MS_MAX // bounds.DAY_MS}"
        )
    wanted = states or (State.DONE, State.CANCELLED)
    return JobFilter(
        queue=queue,
        states=(*wanted, *((State.DEAD,) if dead and State.DEAD not in wanted else ())),
        finished_before_ms=round(days * bounds.DAY_MS),
    )


async def archive_jobs(
    engine: Engine, wanted: JobFilter, archive: Archive, *, advance: OnProgress = ignore_progress
) -> ArchiveResult:
    """Write every finished match to the archive, then delete it; a job that changed in between,
    because an operator retried it, stays."""
    deleted = archived = 0
    async for page in job_batches(engine, wanted, _ARCHIVE_BATCH):
        found = await asyncio.gather(*(engine.get(job.id) for job in page))
        jobs = [job for job in found if job is not None and job.state.finished]
        try:
            await asyncio.to_thread(archive.write, jobs)
        except OSError as error:
            raise StorageFull(
                f"{not_written(archive.path, error)}; {counted(deleted, 'job')} deleted before the"
                " error, no others"
            ) from error
        archived += len(jobs)
        deleted += await delete_unchanged(engine, jobs)
        advance(len(jobs))
    return ArchiveResult(deleted, archived)


async def delete_unchanged(engine: Engine, jobs: Sequence[Job]) -> int:
    """Delete finished jobs that are still as they were read, and return how many were."""
    # Jobs with the same history have the same version, so there are few groups.
    versions: dict[int, list[Job]] = defaultdict(list)
    for job in jobs:
        versions[job.version].append(job)
    deleted = 0
    for version, group in versions.items():
        unchanged = JobFilter(
            ids=tuple(job.id for job in group),
            states=_FINISHED,
            version=version,
            # An id that was deleted and enqueued again since is another job.
            created_before=max(job.created_at for job in group) + 1,
        )
        deleted += await engine.amend(unchanged, Delete(), limit=len(group))
    return deleted


class Archive:
    """A file of JSON lines, one finished job each. It is opened for every batch, so it may be
    rotated at any time.

    A line is on disk before its job is deleted. After a crash a job may be in the file twice, or
    follow a torn line that is not JSON: readers skip both. A job is never missing.
    """

    def __init__(self, path: Path | str) -> None:
        self.path: Path = Path(path)

    def write(self, jobs: Sequence[Job]) -> None:
        """Append and sync; blocking. OSError if not all lines are known to be on disk. A link is
        refused: whoever may write to the folder could lead it to any file of this user."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            file = os.open(self.path, flags, 0o600)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            text = "it is a symbolic link; name the file itself"
            raise OSError(errno.ELOOP, text, str(self.path)) from None
        try:
            # Several pruners may share one file; their lines must not mix.
            fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                _write_all(file, b"\n")
            for job in jobs:
                _write_all(file, encode_job(job) + b"\n")
            os.fsync(file)
            self._sync_folder()
        finally:
            os.close(file)

    def _sync_folder(self) -> None:
        """Make the name of a new file durable; any batch may be the first."""
        folder = os.open(self.path.resolve().parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
