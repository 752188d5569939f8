"""The jobs that a completed one brings along, in the transaction that ends its lease."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core import meeting
from holdfast.core.model import NewJob
from holdfast.engines.sqlite.admitting import admit, arrange, holder_of, is_known, missing_parent
from holdfast.engines.sqlite.unit import Unit


def follow_up(unit: Unit, jobs: Sequence[NewJob]) -> None:
    """A known id or a held key is passed over."""
    for place in arrange(unit, jobs)[0]:
        new = jobs[place]
        if not is_known(unit, new.id) and holder_of(unit, new) is None:
            admit(unit, new, unit.catalog.lines[new.queue])


def may_follow(unit: Unit, jobs: Sequence[NewJob], done: str) -> bool:
    """Could all of them come in, once the job `done` is finished?"""
    return not jobs or meeting.may_follow(
        jobs,
        arrange(unit, jobs),
        queue_of=lambda name: unit.catalog.lines[name].queue,
        is_known=lambda id_: is_known(unit, id_),
        is_held=lambda new: holder_of(unit, new, done) is not None,
        is_orphan=lambda new, coming: missing_parent(unit, new, coming) is not None,
    )
