"""The jobs that a completed one brings along, in the transaction that ends its lease."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core import lanes
from holdfast.core.model import NewJob
from holdfast.engines.sqlite.admitting import admit, arrange, holder_of, is_known, missing_parent
from holdfast.engines.sqlite.unit import Unit
from holdfast.errors import UsageError


def follow_up(unit: Unit, jobs: Sequence[NewJob]) -> None:
    """A known id or a held key is passed over."""
    for place in arrange(unit, jobs)[0]:
        new = jobs[place]
        if not is_known(unit, new.id) and holder_of(unit, new) is None:
            admit(unit, new, unit.catalog.lines[new.queue])


def may_follow(unit: Unit, jobs: Sequence[NewJob], done: str) -> bool:
    """Could all of them come in, once the job `done` is finished?"""
    order, circular = arrange(unit, jobs)
    coming: set[str] = set()
    keys: set[tuple[str, str]] = set()
    for place in order:
        new = jobs[place]
        if new.id in coming or is_known(unit, new.id):
            continue
        if place in circular:
            return False
        key = None if new.key is None else (new.queue, new.key)
        if key in keys or holder_of(unit, new, done) is not None:
            continue
        if missing_parent(unit, new, coming) is not None:
            return False
        try:
            lanes.lane_of(new, unit.catalog.lines[new.queue].queue, strict=True)
        except UsageError:
            return False
        coming.add(new.id)
        if key is not None:
            keys.add(key)
    return True
