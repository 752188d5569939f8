"""Enqueues jobs in their home partitions, after looking up parents and ids given by users.

Each partition's part of a call is one transaction. A repeated call finds the same partitions
again, so repeating is safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from holdfast.core import bounds, checks
from holdfast.core.model import JobFilter, NewJob, Receipt, Status
from holdfast.core.verdict import Complete, Settlement
from holdfast.engines.partitioned import placement
from holdfast.engines.partitioned.membership import Membership
from holdfast.engines.partitioned.merge import PartitionedBatch
from holdfast.engines.partitioned.placement import bound_homes, is_made
from holdfast.errors import EngineError, OutcomeUnknown, Unsupported, UsageError


class Enqueuer:
    """Enqueues and locates jobs in the partitions."""

    def __init__(self, members: Membership) -> None:
        self._members = members

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """A job whose home is shut out is REFUSED as unavailable; if all jobs are,
        EngineUnavailable is raised.
        """
        batch = PartitionedBatch[NewJob, Receipt](self._members)
        again = await self._address(jobs, batch)
        await batch.ask(lambda engine, part: engine.enqueue(part), lambda each: each.is_in)
        if batch.answers:
            self._refuse_definite(jobs, batch)
        for at, first in again:
            if first in batch.answers and batch.answers[first].status is not Status.REFUSED:
                batch.answers[at] = Receipt(id=jobs[at].id, status=Status.DUPLICATE)
            elif first in batch.errors:
                batch.errors[at] = batch.errors[first]
            else:
                try:
                    [batch.answers[at]] = await self.enqueue([jobs[at]])
                except EngineError as error:
                    batch.errors[at] = error
        for at, receipt in batch.answers.items():
            if receipt.status is Status.NEW and at in batch.places:
                self._members.all[batch.places[at]].changed(jobs[at].queue, 1)
        return batch.whole(len(jobs))

    async def locate(self, ids: Iterable[str]) -> dict[str, int]:
        """The partitions in use that hold these jobs."""
        valid = [id_ for id_ in dict.fromkeys(ids) if bounds.JOB_ID.match(id_)]
        places: dict[str, int] = {}
        for at in range(0, len(valid), bounds.BATCH_MAX):
            wanted = JobFilter(ids=tuple(valid[at : at + bounds.BATCH_MAX]))
            pages = await self._members.ask_all(
                lambda engine, wanted=wanted: engine.find(wanted, limit=bounds.PAGE_MAX)  # type: ignore[misc]
            )
            places |= {job.id: place for place, page in pages.items() for job in page.jobs}
        return places

    async def follow_ups(
        self, settlements: Sequence[Settlement], places: Sequence[int]
    ) -> list[Settlement | None]:
        """The settlements to apply. Follow-up jobs are stored in the partition of the completion:
        None if one belongs to another; one that already exists in another is left out."""
        if len(self._members.all) == 1:
            return list(settlements)
        own = [new.id for given in settlements for new in _then(given) if not is_made(new.id)]
        known = await self.locate(own) if own else {}
        return [
            self._follow_up(given, place, known)
            for given, place in zip(settlements, places, strict=True)
        ]

    def _follow_up(
        self, given: Settlement, place: int, known: Mapping[str, int]
    ) -> Settlement | None:
        then = _then(given)
        if not then:
            return given
        count = len(self._members.all)
        if any(home != place for new in then for home in bound_homes(new, count).values()):
            return None
        kept = tuple(new for new in then if known.get(new.id, place) == place)
        return replace(given, verdict=replace(given.verdict, then=kept))

    async def _address(
        self, jobs: Sequence[NewJob], batch: PartitionedBatch[NewJob, Receipt]
    ) -> list[tuple[int, int]]:
        """Add each job to its partition's part of the batch, or answer it. Returns the positions of
        jobs that repeat an id of this call in another partition, with the first position."""
        count = len(self._members.all)
        parents = await self._parents(jobs)
        places = placement.arrange(jobs, count, parents)
        known = await self._known(jobs)
        first: dict[str, int] = {}
        again = []
        for at, (new, place) in enumerate(zip(jobs, places, strict=True)):
            if isinstance(place, Unsupported):
                batch.answers[at] = _checked(new) or checks.refusal(new.id, place)
            elif known.get(new.id, place) != place:
                duplicate = Receipt(id=new.id, status=Status.DUPLICATE)
                batch.answers[at] = _checked(new) or duplicate
            elif not self._members.whole and self._lacks_parent(new, jobs, parents):
                batch.errors[at] = self._members.first_out().unavailable()
            elif new.id in first and places[first[new.id]] != place:
                again.append((at, first[new.id]))
            else:
                first.setdefault(new.id, at)
                batch.add(at, place, new)
        return again

    async def _parents(self, jobs: Sequence[NewJob]) -> dict[str, int]:
        here = {job.id for job in jobs}
        wanted = [id_ for job in jobs for id_ in job.after if id_ not in here]
        return await self.locate(wanted) if wanted else {}

    async def _known(self, jobs: Sequence[NewJob]) -> dict[str, int]:
        """A job with an id given by a user may be outside the id's home, because of its key, group
        or parents. The parents of a job with a generated id may be deleted when its call is
        repeated."""
        if len(self._members.all) == 1:
            return {}
        own = [job.id for job in jobs if job.after or not is_made(job.id)]
        return await self.locate(own) if own else {}

    def _lacks_parent(
        self, new: NewJob, jobs: Sequence[NewJob], parents: Mapping[str, int]
    ) -> bool:
        """True if a parent is unknown and may be in a partition that is shut out."""
        if not new.after:
            return False
        here = {job.id for job in jobs}
        return any(id_ not in here and id_ not in parents for id_ in new.after)

    def _refuse_definite(
        self, jobs: Sequence[NewJob], batch: PartitionedBatch[NewJob, Receipt]
    ) -> None:
        """A job that was certainly not stored is REFUSED; the answers for the others stay."""
        for at, error in list(batch.errors.items()):
            if not isinstance(error, OutcomeUnknown):
                batch.answers[at] = _refused(jobs[at].id, error)
                del batch.errors[at]


def _then(settlement: Settlement) -> tuple[NewJob, ...]:
    return settlement.verdict.then if isinstance(settlement.verdict, Complete) else ()


def _checked(new: NewJob) -> Receipt | None:
    """The refusal of an invalid job, which comes before any other answer."""
    try:
        checks.check_job(new)
    except UsageError as error:
        return checks.refusal(new.id, error)
    return None


def _refused(id: str, error: EngineError) -> Receipt:
    return Receipt(id=id, status=Status.REFUSED, code=error.code, text=str(error))
