"""The flags that say which jobs are meant, the same for every command that takes many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from holdfast.core.model import JobFilter, Reason, State
from holdfast.filters import instant, pairs


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Which:
    """Every flag that is given must fit."""

    queue: Annotated[str | None, Parameter(help="Of this queue.")] = None
    task: Annotated[str | None, Parameter(help="Of this task.")] = None
    tenant: Annotated[str | None, Parameter(help="Of this tenant.")] = None
    group: Annotated[str | None, Parameter(help="Of this group.")] = None
    key: Annotated[str | None, Parameter(help="With this key.")] = None
    worker: Annotated[str | None, Parameter(help="Last leased by this worker.")] = None
    reason: Annotated[Reason | None, Parameter(help="Dead for this reason.")] = None
    fingerprint: Annotated[str | None, Parameter(help="Dead of this: see dlq groups.")] = None
    label: Annotated[
        list[str] | None, Parameter(help="With this label, name=value; may be repeated.")
    ] = None
    since: Annotated[
        str | None, Parameter(help="Enqueued since: 1h ago, or 2026-01-31T08:00Z.")
    ] = None
    before: Annotated[str | None, Parameter(help="Enqueued before: as with --since.")] = None
    search: Annotated[
        str | None, Parameter(help="With this text in its id, task, key or tenant.")
    ] = None

    def wanted(self, states: tuple[State, ...] | None = None) -> JobFilter:
        return JobFilter(
            queue=self.queue,
            states=states,
            task=self.task,
            tenant=self.tenant,
            group=self.group,
            key=self.key,
            worker=self.worker,
            reason=self.reason,
            fingerprint=self.fingerprint,
            labels=pairs("label", self.label),
            search=self.search,
            created_from=instant("since", self.since),
            created_before=instant("before", self.before),
        )


WHICH = Which()
