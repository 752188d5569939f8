"""A job in memory, and the forms in which it is handed out."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core import checks
from holdfast.core.flow import SlotKey
from holdfast.core.model import Event, Job, Note


class Row:
    """A job and what its frozen value does not say: its place in line, its boot deadline, the
    slots that its lease holds and the parents it still waits for."""

    __slots__ = ("deadline", "events", "job", "parents", "place", "slots")

    def __init__(self, job: Job, place: int) -> None:
        self.job = job
        self.place = place
        self.deadline = 0
        self.slots: tuple[SlotKey, ...] = ()
        self.parents: dict[str, None] = {}
        self.events: list[Event] = []


def noted(job: Job, note: Note | None) -> Job:
    if note is None:
        return job
    return replace(
        job,
        progress=job.progress if note.progress is None else note.progress,
        checkpoint=job.checkpoint if note.checkpoint is None else note.checkpoint,
        output=job.output if note.output is None else checks.clip_output(note.output),
    )


def in_hand(job: Job) -> Job:
    """What a lease carries: the checkpoint to go on from, but no output or result."""
    return replace(job, output=None, result=None)


def brief(job: Job) -> Job:
    """What a list carries."""
    return replace(job, output=None, result=None, checkpoint=None, progress=None, after=())


def bare(job: Job) -> Job:
    """What the reaper decides on."""
    return replace(brief(job), payload=b"")
