"""Which jobs a request means, in its query or in its body."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core import limits
from holdfast.core.model import JobFilter, Reason, State
from holdfast.filters import instant, pairs
from holdfast.server.shapes import Instant, JobId, Name, Pairs, QueueName, TaskName

LabelPair = Annotated[
    str, Meta(pattern="^[^=\\x00]+=", description="name=value", examples=["region=eu"])
]
Cursor = Annotated[
    str, Meta(pattern="^[0-9]{1,400}$", description="Go on where the last page ended: its `after`.")
]
Fingerprint = Annotated[str, Meta(min_length=1, max_length=limits.NAME_BYTES_MAX)]


class Which(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    queue: QueueName | None = None
    task: TaskName | None = None
    tenant: Name | None = None
    group: Name | None = None
    key: Name | None = None
    worker: Name | None = None
    reason: Reason | None = None
    fingerprint: Fingerprint | None = None
    since: Instant | None = None
    before: Instant | None = None
    search: Name | None = None


class WhichQuery(Which, forbid_unknown_fields=True, kw_only=True):
    """Everything that is given must fit; `search` is a text in the id, task, key or tenant."""

    label: list[LabelPair] | None = None

    def wanted(self, states: tuple[State, ...] | None = None) -> JobFilter:
        return _wanted(self, states, pairs("label", self.label))


class PageQuery(WhichQuery, forbid_unknown_fields=True, kw_only=True):
    """A page of them, newest first. It may be short: go on while `after` is not null."""

    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_MAX)] = 100
    after: Cursor | None = None

    @property
    def cursor(self) -> int | None:
        return None if self.after is None else int(self.after)


class Filter(Which, forbid_unknown_fields=True, kw_only=True):
    """Everything that is given must fit; `search` is a text in the id, task, key or tenant."""

    ids: Annotated[list[JobId], Meta(min_length=1, max_length=limits.BATCH_MAX)] | None = None
    states: Annotated[list[State], Meta(min_length=1, max_length=len(State))] | None = None
    labels: Pairs | None = None

    def wanted(self, states: tuple[State, ...] | None = None) -> JobFilter:
        """Only those in one of `states`, if that is given."""
        own = None if self.states is None else tuple(self.states)
        if own is not None and states is not None:
            own = tuple(state for state in own if state in states)
        wanted = _wanted(self, states if own is None else own, self.labels)
        ids = None if self.ids is None else tuple(dict.fromkeys(self.ids))
        return msgspec.structs.replace(wanted, ids=ids)


def cursor_of(after: int | None) -> str | None:
    """As text, because it may be more than every reader of JSON keeps exact."""
    return None if after is None else str(after)


def _wanted(
    which: Which, states: tuple[State, ...] | None, labels: dict[str, str] | None
) -> JobFilter:
    return JobFilter(
        queue=which.queue,
        states=states,
        task=which.task,
        tenant=which.tenant,
        group=which.group,
        key=which.key,
        worker=which.worker,
        reason=which.reason,
        fingerprint=which.fingerprint,
        labels=labels,
        search=which.search,
        created_from=instant("since", which.since),
        created_before=instant("before", which.before),
    )
