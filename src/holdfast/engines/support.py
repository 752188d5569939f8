"""Missing traits: each check turns one into Unsupported, with the feature and a remedy.

Pure. `wrapper.Supported` calls the checks around every engine that lacks something, so neither
engines nor wrappers need to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

from holdfast.core import bounds, checks
from holdfast.core.model import JobFilter, LeaseRequest, NewJob, Note, Queue, Renewal
from holdfast.core.verdict import (
    Amendment,
    Bury,
    BuryWaiting,
    Cancel,
    Complete,
    Delete,
    Edit,
    Expedite,
    Forward,
    Move,
    Redrive,
    Release,
    Retime,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.engines.base import NO_RECORDS, Traits
from holdfast.errors import Unsupported, UsageError

FULL = Traits(
    name="", durable=True, shared=True, groups=True, dependencies=True, rates=True,
    dead_leases=True, queue_expiry=True, key_hold=True, parent_filter=True,
)  # fmt: skip
"""Every trait that a call can need."""
_OF_JOBS = (
    *"priority keys key_hold groups dependencies delay_ms_max lease_ms_max payload_max".split(),
)
_CHECKED = (
    *_OF_JOBS,
    *"inspect renew rates limits fairness results notes follow_ups records retry_ms_max".split(),
    "dead_leases",
    "keep_order",
    "queue_expiry",
    "parent_filter",
)


def has_gaps(traits: Traits) -> bool:
    """True if calls must be checked; an engine with all these traits needs no check."""
    return any(lacks(traits, name) for name in _CHECKED)


def lacks(traits: Traits, name: str) -> bool:
    """True if the trait is off, or its bound lower than that of a full engine."""
    return bool(getattr(traits, name) < getattr(FULL, name))


class Support:
    """The checks for one engine. Each raises Unsupported if a trait is missing."""

    def __init__(self, traits: Traits) -> None:
        self._traits = traits
        self._has_gaps = has_gaps(traits)
        self._checks_jobs = any(lacks(traits, name) for name in _OF_JOBS)

    def check_queue(self, queue: Queue) -> None:
        """For `declare`."""
        checks.check_queue(queue)
        traits = self._traits
        for feature, is_missing in (
            ("max_depth", queue.max_depth is not None and not traits.limits),
            ("limits", _has_concurrency(queue) and not traits.limits),
            ("rates", _has_rate(queue) and not traits.rates),
            ("fairness", queue.fairness != "off" and not traits.fairness),
            ("weights of tenants", bool(queue.weights) and not traits.fairness),
            ("aging_ms", queue.aging_ms is not None and not traits.priority),
            ("group_batch", queue.group_batch > 1 and not self._has_groups(queue.name)),
            ('order "keep"', queue.order == "keep" and not traits.keep_order),
            ("expires", queue.expires_ms is not None and not traits.queue_expiry),
        ):
            if is_missing:
                remedy = f"leave it out of queue {queue.name}, or use another engine for the queue"
                raise self._unsupported(feature, remedy)
        self._check_lease_ms(queue.lease_ms)

    def job_errors(self, jobs: Sequence[NewJob]) -> dict[int, Unsupported]:
        """For `enqueue`: the errors of unsupported jobs, by their positions."""
        if not self._checks_jobs:
            return {}
        errors: dict[int, Unsupported] = {}
        for at, job in enumerate(jobs):
            try:
                self._check_job(job)
            except Unsupported as error:
                if not _is_invalid(job):
                    errors[at] = error
        return errors

    def check_request(self, request: LeaseRequest) -> None:
        """For `lease`."""
        checks.check_request(request)
        if request.ids and not self._traits.inspect:
            raise self._unsupported("leasing by id", "lease from a queue instead")
        if request.dead and not self._traits.dead_leases:
            remedy = "use an engine that can, such as SQLite or PostgreSQL, or a newer server"
            raise self._unsupported("leasing dead letters", remedy)
        self._check_lease_ms(request.lease_ms)

    def check_renewals(self, renewals: Sequence[Renewal]) -> None:
        """For `renew`."""
        checks.check_renewals(renewals)
        if not self._traits.renew:
            remedy = "give the job a lease that is long enough for its run"
            raise self._unsupported("renewal of leases", remedy)
        for renewal in renewals:
            self._check_lease_ms(renewal.lease_ms)
            self._check_note(renewal.note)

    def check_settlements(self, settlements: Iterable[Settlement]) -> None:
        """For `settle`. The engine itself refuses an invalid verdict."""
        if not self._has_gaps:
            return
        for settlement in settlements:
            if not _is_invalid(settlement):
                self._check_note(settlement.note)
                self._check_verdict(settlement.verdict)

    def check_search(self, feature: str) -> None:
        """For the verbs that look up jobs."""
        if not self._traits.inspect:
            remedy = "use an engine that can search its jobs, such as SQLite or PostgreSQL"
            raise self._unsupported(feature, remedy)

    def check_find(self, wanted: JobFilter) -> None:
        """For `find` and `find_rows`."""
        self.check_search("searching jobs")
        self.check_filter(wanted)

    def check_filter(self, wanted: JobFilter) -> None:
        """For the verbs that select jobs: an engine that ignores a field would select too many."""
        if wanted.parent is not None and not self._traits.parent_filter:
            remedy = "leave out the parent, or use a newer server"
            raise self._unsupported("selecting jobs by their parent", remedy)

    def check_amendment(self, amendment: Amendment) -> None:
        """For `amend`."""
        checks.check_amendment(amendment)
        self.check_search("changing jobs without a lease")
        match amendment:
            case Edit(payload=payload, priority=priority):
                self._check_priority(priority or 0)
                self._check_payload(payload or b"")
            case Expedite():
                self._check_priority(bounds.PRIORITY_MAX)
            case Retime(delay_ms=delay_ms) | Redrive(delay_ms=delay_ms):
                self._check_ms("a delay", delay_ms, self._traits.delay_ms_max)
            case Cancel() | BuryWaiting() | Move() | Delete():
                pass
            case never:
                assert_never(never)

    def check_records(self) -> None:
        """For `load` and `save`."""
        if not self._traits.records:
            raise self._unsupported("records (workers, schedules, settings)", NO_RECORDS)

    def _check_job(self, job: NewJob) -> None:
        traits = self._traits
        self._check_priority(job.priority)
        if job.key is not None and not traits.keys:
            remedy = "leave out the key, and let the handler recognise repeats"
            raise self._unsupported("once-only keys", remedy)
        if job.key is not None and job.key_hold == "window" and not traits.key_hold:
            raise self._unsupported('key_hold "window"', "leave it out, or use a newer server")
        if job.group is not None and not self._has_groups(job.queue):
            remedy = "leave out the group"
            if traits.fifo_groups:
                remedy += ", or use a queue whose name ends in .fifo"
            raise self._unsupported("strict groups", remedy)
        if job.after and not traits.dependencies:
            remedy = "enqueue the job after its parents have ended, e.g. as a follow-up"
            raise self._unsupported("jobs after other jobs", remedy)
        self._check_ms("a delay", job.delay_ms, traits.delay_ms_max)
        self._check_lease_ms(job.overrides.lease_ms)
        self._check_payload(job.payload)

    def _has_groups(self, queue: str) -> bool:
        return self._traits.groups or (self._traits.fifo_groups and queue.endswith(".fifo"))

    def _check_verdict(self, verdict: Verdict) -> None:
        match verdict:
            case Complete(result=result, then=then):
                self._check_completion(result, then)
            case Retry(delay_ms=delay_ms) | Release(delay_ms=delay_ms):
                self._check_ms("a retry delay", delay_ms, self._traits.retry_ms_max)
            case Bury() | Forward():
                pass
            case never:
                assert_never(never)

    def _check_completion(self, result: bytes | None, then: Sequence[NewJob]) -> None:
        if result is not None and not self._traits.results:
            raise self._unsupported("results", "store the result elsewhere, and return nothing")
        if then and not self._traits.follow_ups:
            raise self._unsupported("follow-up jobs", "enqueue them before the job completes")
        for error in self.job_errors(then).values():
            raise error

    def _check_priority(self, priority: int) -> None:
        if priority and not self._traits.priority:
            raise self._unsupported("priorities", "use a separate queue for urgent jobs")

    def _check_payload(self, payload: bytes) -> None:
        if len(payload) > self._traits.payload_max:
            remedy = "store the data elsewhere and enqueue a reference to it"
            bound = f"over {self._traits.payload_max} bytes"
            raise self._unsupported(f"a payload {bound} (this one is {len(payload)})", remedy)

    def _check_note(self, note: Note | None) -> None:
        if note is not None and not self._traits.notes:
            remedy = "store the state of the run yourself"
            raise self._unsupported("progress, checkpoints and output of a run", remedy)

    def _check_lease_ms(self, lease_ms: int | None) -> None:
        if lease_ms is not None:
            self._check_ms("a lease", lease_ms, self._traits.lease_ms_max)

    def _check_ms(self, what: str, ms: int, bound: int) -> None:
        if ms > bound:
            remedy = f"use at most {bound / 1000:g} s"
            raise self._unsupported(f"{what} of {ms / 1000:g} s", remedy)

    def _unsupported(self, feature: str, remedy: str) -> Unsupported:
        return Unsupported(self._traits.name, feature, remedy)


def _is_invalid(entry: NewJob | Settlement) -> bool:
    """True if every engine refuses it: the engine then says why."""
    try:
        checks.check_job(entry) if isinstance(entry, NewJob) else checks.check_settlement(entry)
    except UsageError:
        return True
    return False


def _has_concurrency(queue: Queue) -> bool:
    return any(limit.concurrency is not None for limit in queue.limits)


def _has_rate(queue: Queue) -> bool:
    return any(limit.rate is not None for limit in queue.limits)
