"""New jobs to their homes, and what must be looked up before: parents, and ids that people gave.

Each partition's part of a call is one transaction. What the call's repeat would find is the same
places again, so that repeating it is safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from holdfast.core import admission, checks, limits
from holdfast.core.model import JobFilter, NewJob, Receipt, Status
from holdfast.core.verdict import Complete, Settlement
from holdfast.engines.partitioned import placing
from holdfast.engines.partitioned.homes import bound_homes, is_made
from holdfast.engines.partitioned.keeper import Keeper
from holdfast.engines.partitioned.routing import Batch
from holdfast.errors import EngineError, OutcomeUnknown, Unsupported, UsageError


class Enqueuer:
    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """A job whose home is out is refused as unavailable; if that is all there is to say, it
        is raised."""
        batch = Batch[NewJob, Receipt](self._keeper)
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
                self._keeper.all[batch.places[at]].changed(jobs[at].queue, 1)
        return batch.whole(len(jobs))

    async def locate(self, ids: Iterable[str]) -> dict[str, int]:
        """Where these jobs are, as far as the partitions in use know them."""
        asked = [id_ for id_ in dict.fromkeys(ids) if limits.JOB_ID.match(id_)]
        places: dict[str, int] = {}
        for at in range(0, len(asked), limits.BATCH_MAX):
            wanted = JobFilter(ids=tuple(asked[at : at + limits.BATCH_MAX]))
            pages = await self._keeper.ask_all(
                lambda engine, wanted=wanted: engine.find(wanted, limit=limits.PAGE_MAX)  # type: ignore[misc]
            )
            places |= {job.id: place for place, page in pages.items() for job in page.jobs}
        return places

    async def follow_ups(
        self, settlements: Sequence[Settlement], places: Sequence[int]
    ) -> list[Settlement | None]:
        """As their partitions may apply them: follow-up jobs come in with the completion, in its
        partition. None where one must be elsewhere. One that is elsewhere already is left out.
        """
        if len(self._keeper.all) == 1:
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
        count = len(self._keeper.all)
        if any(home != place for new in then for home in bound_homes(new, count).values()):
            return None
        kept = tuple(new for new in then if known.get(new.id, place) == place)
        return replace(given, verdict=replace(given.verdict, then=kept))

    async def _address(
        self, jobs: Sequence[NewJob], batch: Batch[NewJob, Receipt]
    ) -> list[tuple[int, int]]:
        """Give each job its partition, or its answer; and tell which repeat an id of this call
        that goes to another partition."""
        count = len(self._keeper.all)
        parents = await self._parents(jobs)
        places = placing.arrange(jobs, count, parents)
        known = await self._known(jobs)
        first: dict[str, int] = {}
        again = []
        for at, (new, place) in enumerate(zip(jobs, places, strict=True)):
            if isinstance(place, Unsupported):
                batch.answers[at] = _checked(new) or admission.refused(new.id, place)
            elif known.get(new.id, place) != place:
                duplicate = Receipt(id=new.id, status=Status.DUPLICATE)
                batch.answers[at] = _checked(new) or duplicate
            elif not self._keeper.whole and self._lacks_parent(new, jobs, parents):
                batch.errors[at] = self._keeper.first_out().unavailable()
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
        """An id that a person gave may be in use in a partition that is not its home: there its
        job went for its key, its group or its parents. The parents of a made one may be gone when
        its call is repeated."""
        if len(self._keeper.all) == 1:
            return {}
        own = [job.id for job in jobs if job.after or not is_made(job.id)]
        return await self.locate(own) if own else {}

    def _lacks_parent(
        self, new: NewJob, jobs: Sequence[NewJob], parents: Mapping[str, int]
    ) -> bool:
        """It may be in the partition that is out."""
        if not new.after:
            return False
        here = {job.id for job in jobs}
        return any(id_ not in here and id_ not in parents for id_ in new.after)

    def _refuse_definite(self, jobs: Sequence[NewJob], batch: Batch[NewJob, Receipt]) -> None:
        """Where nothing was changed the job is refused like any other, beside its neighbours."""
        for at, error in list(batch.errors.items()):
            if not isinstance(error, OutcomeUnknown):
                batch.answers[at] = _refused(jobs[at].id, error)
                del batch.errors[at]


def _then(settlement: Settlement) -> tuple[NewJob, ...]:
    return settlement.verdict.then if isinstance(settlement.verdict, Complete) else ()


def _checked(new: NewJob) -> Receipt | None:
    """What is wrong with the job itself is said first."""
    try:
        checks.check_job(new)
    except UsageError as error:
        return admission.refused(new.id, error)
    return None


def _refused(id: str, error: EngineError) -> Receipt:
    return Receipt(id=id, status=Status.REFUSED, code=error.code, text=str(error))
