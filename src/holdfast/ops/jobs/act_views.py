"""Views of acts on many jobs: the act in words, its consequences and its progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import msgspec

from holdfast.core import bounds
from holdfast.core.model import State, WaitingKind
from holdfast.core.text import counted, printable, show_ms
from holdfast.engines.base import Engine
from holdfast.notation.durations import show_at
from holdfast.ops.jobs.acts import ACT_KIND, ACTS, ActPlan, ActRecord, ActState, ActWord
from holdfast.ops.views import at_of

_SHOWN_MAX = 80
_STATE_WORDS = {
    State.WAITING: "waiting",
    State.LEASED: "running",
    State.DONE: "done",
    State.DEAD: "dead",
    State.CANCELLED: "cancelled",
}
_KIND_WORDS = {
    WaitingKind.PENDING: "not attempted yet",
    WaitingKind.SCHEDULED: "due later",
    WaitingKind.FAILED: "to be retried",
}


class ActDetails(msgspec.Struct, frozen=True, kw_only=True):
    """An act and its progress. `says` is the act in words, for people to confirm, and `notes` are
    its consequences. `states` counts the jobs by the state in which they were counted. If `capped`,
    more jobs match than one act may change, or than were examined for a text. Of `count` jobs,
    `done` were changed; `changed_since` had changed since they were counted, and were not touched;
    `failed` could not be changed; `left` have not been reached."""

    id: str
    act: ActWord
    state: ActState
    says: str
    notes: tuple[str, ...]
    count: int
    capped: bool
    states: dict[State, int]
    done: int
    changed_since: int
    failed: int
    left: int
    by: str
    text: str
    created_at: str
    started_at: str | None
    ended_at: str | None


async def read_acts(engine: Engine) -> dict[str, ActDetails]:
    """The acts that an engine shows, oldest first, by id. One read, bounded by the number of acts
    that are stored."""
    page = await engine.load(ACT_KIND, limit=bounds.PAGE_MAX)
    found = filter(None, map(ACTS.decode, page))
    return {act.id: act_details(act) for act in found if act.state is not ActState.COUNTING}


def act_details(act: ActRecord) -> ActDetails:
    """An act as people read it, without the values that it writes."""
    return ActDetails(
        id=act.id,
        act=act.plan.act,
        state=act.state,
        says=says(act),
        notes=notes(act),
        count=act.count,
        capped=act.capped,
        states=act.states,
        done=act.done,
        changed_since=act.changed,
        failed=act.failed,
        left=act.left,
        by=act.by,
        text=act.text,
        created_at=show_at(act.created_at),
        started_at=at_of(act.started_at),
        ended_at=at_of(act.ended_at),
    )


def says(act: ActRecord) -> str:
    """The act in words: Cancel 1,234 waiting jobs in queue mail."""
    plan = act.plan
    jobs = " ".join(filter(None, (_counted_jobs(act), *_filter_words(plan))))
    match plan.act:
        case "cancel" | "expedite" | "delete":
            return f"{plan.act.capitalize()} {jobs}"
        case "retry":
            after = f", after {show_ms(plan.delay_ms)}" if plan.delay_ms else ""
            return f"Put back {jobs}{after}"
        case "move":
            return f"Move {jobs} to queue {_shown(plan.queue or '')}"
        case "delay":
            return f"Delay {jobs} by {show_ms(plan.delay_ms)}"
        case "edit":
            names = [
                word
                for word, value in (
                    ("payload", plan.patch),
                    ("priority", plan.priority),
                    ("expiry", plan.expires_ms),
                    ("labels", plan.labels),
                    ("headers", plan.headers),
                )
                if value is not None
            ]
            return f"Edit the {_joined(names)} of {jobs}"
        case never:
            assert_never(never)


def notes(act: ActRecord) -> tuple[str, ...]:
    """Warnings for the people who confirm the act."""
    found = []
    running = act.states.get(State.LEASED, 0)
    if running and act.plan.act == "cancel":
        found.append(
            f"{counted(running, 'job')} of these {_are(running)} running: workers are asked to stop"
            " them, and a job that completes first is done."
        )
    if running and act.plan.act == "delete":
        found.append(
            f"{counted(running, 'job')} of these {_are(running)} running: their leases are lost,"
            " and what their workers have done so far stays done."
        )
    if act.capped:
        found.append(
            "More jobs match: only these, the newest, are changed. Repeat the act for the others."
        )
    if act.plan.act == "delete" and act.count:
        found.append("Deleted jobs cannot be restored.")
    return tuple(found)


def _counted_jobs(act: ActRecord) -> str:
    """1,234 waiting jobs; the state is named if all of them share it."""
    shared = [state for state, count in act.states.items() if count]
    adjective = f"{_STATE_WORDS[shared[0]]} " if len(shared) == 1 else ""
    newest = "the newest " if act.capped else ""
    chosen = "selected " if act.plan.wanted.ids is not None else ""
    return newest + counted(act.count, f"{chosen}{adjective}job")


def _filter_words(plan: ActPlan) -> list[str]:
    wanted = plan.wanted
    words = [
        f"{phrase} {_shown(str(value))}"
        for phrase, value in (
            ("in queue", wanted.queue),
            ("of task", wanted.task),
            ("of tenant", wanted.tenant),
            ("of group", wanted.group),
            ("with key", wanted.key),
            ("on worker", wanted.worker),
            ("with reason", wanted.reason),
            ("with fingerprint", wanted.fingerprint),
            ("with parent", wanted.parent),
            *(("with label", f"{name}={value}") for name, value in (wanted.labels or {}).items()),
        )
        if value is not None
    ]
    if wanted.waiting:
        words.append(f"({' or '.join(_KIND_WORDS[kind] for kind in wanted.waiting)})")
    if wanted.search is not None:
        words.append(f'with "{_shown(wanted.search)}" in id, task, key or tenant')
    if plan.contains:
        words.append(f'containing "{_shown(plan.contains)}"')
    if wanted.created_from is not None:
        words.append(f"created since {_instant(wanted.created_from)}")
    if wanted.created_before is not None:
        words.append(f"created before {_instant(wanted.created_before)}")
    return words


def _shown(text: str) -> str:
    text = printable(text, one_line=True)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def _instant(at: int) -> str:
    return show_at(min(at, bounds.INSTANT_MAX))


def _joined(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
