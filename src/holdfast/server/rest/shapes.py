"""The types of requests, as OpenAPI describes them: bounded values, filters for jobs, and new jobs.

The bodies of new jobs are made from the fields of `notation.job`. To a type checker they are job
lines; their bounds are checked when a request is decoded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from holdfast.core import bounds
from holdfast.core.model import JobFilter, Reason, State
from holdfast.notation import patterns
from holdfast.notation.filters import ChosenStates, StateWord, chosen_states, instant, pairs
from holdfast.notation.job import FIELDS, JobId, JobLine, Name, Pairs, QueueName, TaskName
from holdfast.notation.patterns import NO_NUL
from holdfast.notation.synonyms import READ_ONLY, ignored_note

MaybeName = Annotated[str, Meta(max_length=bounds.NAME_BYTES_MAX, pattern=NO_NUL)]
"""A name that may be empty."""

Text = Annotated[str, Meta(max_length=bounds.ERROR_TEXT_MAX)]
"""A comment by a person. Control characters are removed before it is stored."""

Instant = Annotated[
    str,
    Meta(
        max_length=40,
        description="An age such as 1h, or a time with its time zone in RFC 3339.",
        examples=["1h"],
    ),
]
Many = Annotated[int, Meta(ge=1, le=bounds.COUNT_EXACT_MAX)]
"""The largest number of jobs that one call acts on."""

Rate = Annotated[
    str,
    Meta(
        pattern=patterns.RATE,
        examples=["100/m burst 20"],
    ),
]
Token = Annotated[int, Meta(ge=0, le=2**63 - 1, description="The token of the lease.")]
LabelPair = Annotated[
    str, Meta(pattern=patterns.LABEL, description="name=value", examples=["region=eu"])
]
Cursor = Annotated[
    str, Meta(pattern=patterns.CURSOR, description="Continue after the last page: its `after`.")
]
StateWords = Annotated[
    list[StateWord],
    Meta(
        min_length=1,
        max_length=len(StateWord),
        description="Jobs in any of these states. Waiting jobs are pending, scheduled (due later),"
        " or failed (retrying): they wait to be retried. processing is leased, completed is done.",
    ),
]
IgnoredNote = (
    Annotated[
        str,
        Meta(
            description="Names the fields that were ignored. Absent if there were none.",
            examples=[ignored_note(READ_ONLY)],
        ),
    ]
    | UnsetType
)
Fingerprint = Annotated[str, Meta(min_length=1, max_length=bounds.NAME_BYTES_MAX)]

_USUAL_FIELDS = ("task", "payload", "id")
"""Most jobs have only these fields, so that they are the first of every body."""


class JobCriteria(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Criteria that queries and bodies share."""

    queue: QueueName | None = None
    task: TaskName | None = None
    tenant: Name | None = None
    group: Name | None = None
    key: Name | None = None
    worker: Name | None = None
    reason: Reason | None = None
    fingerprint: Fingerprint | None = None
    parent: JobId | None = None
    since: Instant | None = None
    before: Instant | None = None
    search: Name | None = None


class FilterQuery(JobCriteria, forbid_unknown_fields=True, kw_only=True):
    """Jobs must match all given fields. `search` is a text in the id, task, key or tenant. `parent`
    is the id of a job: those that were enqueued to run after it match."""

    label: list[LabelPair] | None = None

    def wanted(self, state: Iterable[str] | None = None) -> JobFilter:
        """The engine's filter, for jobs in any of these states."""
        return _job_filter(self, chosen_states(state), pairs("label", self.label))


class PageQuery(FilterQuery, forbid_unknown_fields=True, kw_only=True):
    """A page of matching jobs, newest first. It may be short: continue while `after` is not
    null."""

    limit: Annotated[int, Meta(ge=1, le=bounds.PAGE_MAX)] = 100
    after: Cursor | None = None

    @property
    def cursor(self) -> int | None:
        """The engine's cursor."""
        return None if self.after is None else int(self.after)


class Filter(JobCriteria, forbid_unknown_fields=True, kw_only=True):
    """Jobs must match all given fields. `search` is a text in the id, task, key or tenant. `parent`
    is the id of a job: those that were enqueued to run after it match."""

    ids: Annotated[list[JobId], Meta(min_length=1, max_length=bounds.BATCH_MAX)] | None = None
    states: StateWords | None = None
    labels: Pairs | None = None

    def wanted(self, states: tuple[State, ...] | None = None) -> JobFilter:
        """The engine's filter, for jobs in any of `states` if that is given."""
        own = chosen_states(self.states)
        if own.states is None:
            own = own._replace(states=states)
        elif states is not None:
            own = own._replace(states=tuple(state for state in own.states if state in states))
        wanted = _job_filter(self, own, self.labels)
        ids = None if self.ids is None else tuple(dict.fromkeys(self.ids))
        return msgspec.structs.replace(wanted, ids=ids)


def cursor_text(after: int | None) -> str | None:
    """The cursor as text: some JSON readers lose digits of large numbers."""
    return None if after is None else str(after)


def _job_filter(
    criteria: JobCriteria, chosen: ChosenStates, labels: dict[str, str] | None
) -> JobFilter:
    return JobFilter(
        queue=criteria.queue,
        states=chosen.states,
        waiting=chosen.waiting,
        task=criteria.task,
        tenant=criteria.tenant,
        group=criteria.group,
        key=criteria.key,
        worker=criteria.worker,
        reason=criteria.reason,
        fingerprint=criteria.fingerprint,
        parent=criteria.parent,
        labels=labels,
        search=criteria.search,
        created_from=instant("since", criteria.since),
        created_before=instant("before", criteria.before),
    )


_Ignored = Annotated[Raw, Meta(description="Ignored, with a `note`: the queue sets it.")]
_READ_ONLY_FIELDS = [(name, _Ignored | UnsetType, UNSET) for name in READ_ONLY]


def _bounded(names: Iterable[str]) -> list[tuple[str, Any, Any]]:
    fields: list[tuple[str, Any, Any]] = []
    for name in sorted(names, key=lambda name: name not in _USUAL_FIELDS):
        bounds = FIELDS[name].http
        fields.append((name, bounds | None, None))
        if name == "payload":
            # JSON null is a valid payload, so a missing one needs another marker.
            fields[-1] = (name, bounds | UnsetType, UNSET)
    return fields


if TYPE_CHECKING:
    _TickFields: TypeAlias = JobLine
    _QueueFields: TypeAlias = JobLine
else:
    _TickFields = msgspec.defstruct(
        "_TickFields", _bounded(name for name, field in FIELDS.items() if not field.per_job)
    )
    _QueueFields = msgspec.defstruct(
        "_QueueFields",
        _bounded(name for name, field in FIELDS.items() if not field.place) + _READ_ONLY_FIELDS,
    )


class TickBody(_TickFields, forbid_unknown_fields=True):
    """The job of every tick of a schedule. It has no field that only one job can have."""


class NewJobBody(_QueueFields, forbid_unknown_fields=True):
    """A job is a task with a payload, a command, or a webhook with the body of its request as
    payload. A field that is null counts as left out. A job with a known id, or with a key that
    another job holds, is a duplicate and adds nothing."""


if TYPE_CHECKING:
    _AnyFields: TypeAlias = NewJobBody
else:
    _AnyFields = msgspec.defstruct(
        "_AnyFields",
        _bounded(name for name, field in FIELDS.items() if field.place),
        bases=(NewJobBody,),
    )


class AnyJobBody(_AnyFields, forbid_unknown_fields=True):
    """A job that names its `queue`, or with `to` the worker that runs it. With `reroute`, another
    worker may take it if the named one does not in time: any worker, or one with these labels.
    """
