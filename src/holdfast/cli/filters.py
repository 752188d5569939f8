"""The flags that say which jobs are meant, the same for every command that takes many."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from cyclopts import Parameter
from msgspec.structs import asdict

from holdfast.core.model import JobFilter, Reason, State
from holdfast.durations import to_ms
from holdfast.errors import UsageError
from holdfast.upkeep import wall_ms


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


def is_narrow(wanted: JobFilter) -> bool:
    """Does it name anything besides states?"""
    return any(value is not None for name, value in asdict(wanted).items() if name != "states")


def instant(name: str, text: str | None) -> int | None:
    """So long ago, or a moment by the calendar, with its time zone."""
    if text is None:
        return None
    if "-" not in text:
        return max(wall_ms() - to_ms(name, text.removesuffix(" ago"), UsageError), 0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{name} {text[:40]!r} is no time: write 1h, or 2026-01-31T08:00Z"
        ) from None
    if moment.tzinfo is None:
        raise UsageError(f"{name} {text[:40]!r} has no time zone: add Z, or +01:00")
    return max(round(moment.timestamp() * 1000), 0)


def pairs(name: str, given: list[str] | None) -> dict[str, str] | None:
    """name=value, as often as it was given."""
    if given is None:
        return None
    split = [each.partition("=") for each in given]
    for each, (key, equals, _) in zip(given, split, strict=True):
        if not key or not equals:
            raise UsageError(f"{name} {each[:80]!r} is not name=value")
    return {key: value for key, _, value in split}
