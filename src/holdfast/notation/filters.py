"""The parts of a job filter as people write them: states, instants, and NAME=VALUE pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from msgspec.structs import asdict

from holdfast.core.amend import waiting_kinds
from holdfast.core.model import Job, JobFilter, State, WaitingKind
from holdfast.errors import UsageError
from holdfast.notation.durations import to_ms
from holdfast.process import wall_ms


class StateWord(StrEnum):
    """A state as people write it: the stored states, their usual names elsewhere, and the kinds of
    waiting jobs. `failed` and `retrying` are jobs that wait after a failed attempt."""

    WAITING = "waiting"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"
    PENDING = "pending"
    SCHEDULED = "scheduled"
    FAILED = "failed"
    RETRYING = "retrying"
    PROCESSING = "processing"
    COMPLETED = "completed"


_KINDS = {
    StateWord.PENDING: WaitingKind.PENDING,
    StateWord.SCHEDULED: WaitingKind.SCHEDULED,
    StateWord.FAILED: WaitingKind.FAILED,
    StateWord.RETRYING: WaitingKind.FAILED,
}
_STATES = {
    **{StateWord(state): state for state in State},
    **dict.fromkeys(_KINDS, State.WAITING),
    StateWord.PROCESSING: State.LEASED,
    StateWord.COMPLETED: State.DONE,
}


class ChosenStates(NamedTuple):
    """The fields `states` and `waiting` of a job filter."""

    states: tuple[State, ...] | None = None
    waiting: tuple[WaitingKind, ...] | None = None


def chosen_states(words: Iterable[str] | None) -> ChosenStates:
    """The states that these words name; None names all. Raises UsageError."""
    if words is None:
        return ChosenStates()
    given: list[object] = list(words)
    unknown = [word for word in given if not isinstance(word, str) or word not in _STATES]
    if unknown:
        known = ", ".join(StateWord)
        raise UsageError(f'state "{str(unknown[0])[:40]}": expected one of {known}')
    names = dict.fromkeys(StateWord(str(word)) for word in given)
    states = tuple(dict.fromkeys(_STATES[name] for name in names))
    kinds = tuple(dict.fromkeys(_KINDS[name] for name in names if name in _KINDS))
    return ChosenStates(states, None if StateWord.WAITING in names or not kinds else kinds)


def show_state(job: Job, now: int) -> str:
    """The word for a job's state: a job that waits after a failed attempt is shown as failed."""
    failed = job.state is State.WAITING and WaitingKind.FAILED in waiting_kinds(job, now)
    return str(WaitingKind.FAILED if failed else job.state)


def is_narrow(wanted: JobFilter) -> bool:
    """True if the filter restricts anything besides the state."""
    state = ("states", "waiting")
    return any(value is not None for name, value in asdict(wanted).items() if name not in state)


def instant(name: str, text: str | None) -> int | None:
    """Read an age such as "1h" or a time in RFC 3339: milliseconds since 1970."""
    if text is None:
        return None
    shown = f'{name} "{text[:40]}"'
    try:
        if "-" not in text:
            return max(wall_ms() - to_ms(name, text.removesuffix(" ago"), UsageError), 0)
        moment = datetime.fromisoformat(text)
    except (ValueError, UsageError):
        raise UsageError(
            f"{shown}: expected an age such as 1h, or a time such as 2026-01-31T08:00:00Z"
        ) from None
    if moment.tzinfo is None:
        whole = f"{moment.isoformat(timespec='seconds')}Z"
        raise UsageError(f"{shown} has no time zone: write {whole}, or an offset like +01:00")
    return max(round(moment.timestamp() * 1000), 0)


def pairs(name: str, given: Sequence[str] | None) -> dict[str, str] | None:
    """Read NAME=VALUE pairs. Raises UsageError if one name has two values."""
    if given is None:
        return None
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f'{name} "{text[:80]}": expected NAME=VALUE')
        if found.setdefault(key, value) != value:
            raise UsageError(f'{name} "{key[:80]}" is given two different values')
    return found
