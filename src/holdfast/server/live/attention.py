"""The problems of a store that a person should look at, each with its remedy. Pure.

An alert that was raised is one; so are conditions that no rule has reached yet, such as a queue
with ready jobs and no worker. A condition with an alert of the same kind is listed once, as the
alert. Texts have no ages and no rates, so that they change only if the problem does.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.core import breaker as breakers
from holdfast.core.breaker import BreakerState
from holdfast.core.explain import ABSENT_MS
from holdfast.core.model import QueueView
from holdfast.core.text import counted
from holdfast.core.workers import Health, addressee, worker_queue
from holdfast.engines.extras import PartitionView
from holdfast.notation.durations import show_at
from holdfast.ops.alerts import STALE_MS, StoredAlert
from holdfast.ops.breakers import StoredBreaker
from holdfast.ops.gates import GateState, GateView
from holdfast.ops.queues import Pause
from holdfast.ops.workers import WorkerView
from holdfast.telemetry.recent import QueueRecent

Severity = Literal["critical", "warn", "info"]

PROBLEMS_MAX: Final = 200
OLD_MS: Final = 10 * 60_000
SPIKE_MIN: Final = 5
SPIKE_FACTOR: Final = 3
"""A spike is at least so many dead letters within minutes, and so many times as many as before."""

_TEXT_MAX = 500
_CAUSES = ("no_worker", "queue_paused")
_EFFECTS = ("oldest_age", "depth")
"""Problems of a queue that follow from one of the causes."""
_SEVERITIES: tuple[Severity, ...] = ("critical", "warn", "info")


class AttentionAct(msgspec.Struct, frozen=True, kw_only=True):
    """A request to this server that is a remedy, and the label of its button."""

    method: str
    path: str
    label: str
    body: dict[str, Any] | UnsetType = UNSET


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """A problem. `kind` is the rule of an alert, or the name of a condition. `name` is of a worker,
    breaker, gate or partition, or what an alert is about. `command` is of the CLI, without its
    first word. Callers that may not do it get no `act`."""

    kind: str
    severity: Severity
    text: str
    remedy: str
    queue: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    since: str | UnsetType = UNSET
    count: int | UnsetType = UNSET
    command: str | UnsetType = UNSET
    act: AttentionAct | UnsetType = UNSET


class AttentionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a caller may see. `recent` is by queue; `version` is the server's. Without
    `operates`, no problem has an act."""

    views: Sequence[QueueView] = ()
    pauses: Mapping[str, Pause] = {}
    recent: Mapping[str, QueueRecent] = {}
    alerts: Sequence[StoredAlert] = ()
    workers: Sequence[WorkerView] = ()
    breakers: Mapping[str, StoredBreaker] = {}
    gates: Sequence[GateView] = ()
    partitions: Sequence[PartitionView] = ()
    version: str = ""
    operates: bool = False


def attention(facts: AttentionFacts) -> list[Attention]:
    """The problems, the most severe first. Beyond `PROBLEMS_MAX`, the last one counts the rest."""
    found: dict[tuple[str, str, str], Attention] = {}
    for each in (*_of_alerts(facts), *_conditions(facts)):
        found.setdefault((each.kind, each.queue or "", each.name or ""), each)
    for queue in {each.queue for each in found.values() if each.queue and each.kind in _CAUSES}:
        _merge_effects(found, queue)
    ranked = sorted(
        found.values(),
        key=lambda each: (_SEVERITIES.index(each.severity), each.kind, each.queue or each.name),
    )
    if not facts.operates:
        ranked = [msgspec.structs.replace(each, act=UNSET) for each in ranked]
    if len(ranked) <= PROBLEMS_MAX:
        return ranked
    left_out = len(ranked) - PROBLEMS_MAX + 1
    more = Attention(
        kind="more",
        severity="info",
        text=f"{counted(left_out, 'more problem')} of lower severity",
        remedy="solve those above first, or list all",
        command="status",
        count=left_out,
    )
    return [*ranked[: PROBLEMS_MAX - 1], more]


def _merge_effects(found: dict[tuple[str, str, str], Attention], queue: str) -> None:
    """List a queue where no job starts once: that its jobs grow old and many is no other problem.
    The entry has the highest severity of these."""
    effects = [found.pop((kind, queue, ""), None) for kind in _EFFECTS]
    [cause, *_] = [key for key in found if key[0] in _CAUSES and key[1] == queue]
    severities = [found[cause].severity, *(each.severity for each in effects if each is not None)]
    worst = min(severities, key=_SEVERITIES.index)
    found[cause] = msgspec.structs.replace(found[cause], severity=worst)


def _conditions(facts: AttentionFacts) -> Iterator[Attention]:
    served = {
        queue
        for each in facts.workers
        if each.age_ms <= ABSENT_MS and not each.record.cordoned and not each.record.stopping
        for queue in (*each.record.queues, worker_queue(each.name))
    }
    for view in facts.views:
        yield from _of_queue(view, facts, served)
    yield from map(_of_partition, (each for each in facts.partitions if each.out_ms is not None))
    for name, stored in facts.breakers.items():
        if stored.record.state is not BreakerState.CLOSED:
            yield _of_breaker(name, stored)
    for gate in facts.gates:
        yield from _of_gate(gate)
    for worker in facts.workers:
        yield from _of_worker(worker)
    yield from _of_versions(facts)


def _of_queue(
    view: QueueView, facts: AttentionFacts, served: Container[str]
) -> Iterator[Attention]:
    name = view.queue.name
    waiting = view.ready + view.delayed + view.blocked
    recent = facts.recent.get(name, QueueRecent())
    if view.queue.paused:
        if waiting:
            yield _paused(view, facts.pauses.get(name, Pause()), waiting)
    elif view.ready and not _is_served(view, recent, served):
        yield _of_remedy(
            "no_worker",
            "warn",
            f"{_ready(view)} in queue {name}, and {_missing(name)}",
            queue=name,
            count=view.ready,
        )
    elif (view.oldest_age_ms or 0) > OLD_MS:
        yield _of_remedy(
            "oldest_age",
            "info",
            f"{_ready(view)} in queue {name}, the first for more than 10 minutes",
            queue=name,
            count=view.ready,
        )
    dead, before = recent.dead, recent.dead_before
    if dead is not None and dead >= SPIKE_MIN and dead > SPIKE_FACTOR * (before or 0):
        yield _of_remedy(
            "dead_letters",
            "warn",
            f"{counted(dead, 'job')} of queue {name} died in the last few minutes",
            queue=name,
            count=dead,
        )


def _is_served(view: QueueView, recent: QueueRecent, served: Container[str]) -> bool:
    """Programs that lease over HTTP or through the engine have no worker record."""
    return view.queue.name in served or view.leased > view.overdue or bool(recent.leased)


def _ready(view: QueueView) -> str:
    least = "at least " if "ready" in view.estimated else ""
    return f"{least}{counted(view.ready, 'job')} {'is' if view.ready == 1 else 'are'} ready"


def _missing(queue: str) -> str:
    worker = addressee(queue)
    return "no worker serves it" if worker is None else f"worker {worker} is not running"


def _paused(view: QueueView, pause: Pause, waiting: int) -> Attention:
    name = view.queue.name
    by = f" by {pause.by}" if pause.by else ""
    why = f": {pause.text}" if pause.text else ""
    wait = "waits" if waiting == 1 else "wait"
    return Attention(
        kind="queue_paused",
        severity="warn",
        text=_short(f"queue {name} was paused{by}{why}; {counted(waiting, 'job')} {wait} in it"),
        queue=name,
        count=waiting,
        since=UNSET if pause.at is None or pause.over else show_at(pause.at),
        remedy="resume the queue when the cause is gone",
        command=f"queue resume {name}",
        act=_post(f"/v1/queues/{quote(name, safe='')}/resume", "Resume"),
    )


def _of_partition(view: PartitionView) -> Attention:
    return _of_remedy(
        "partition_out",
        "critical",
        _short(f"partition {view.name} is shut out, with the jobs in it: {view.text}"),
        name=view.name,
    )


def _of_breaker(name: str, stored: StoredBreaker) -> Attention:
    return Attention(
        kind="breaker_open",
        severity="warn",
        text=_short(breakers.describe(stored.record, breakers.title(name))),
        name=name,
        remedy=breakers.remedy(is_probed=not stored.record.by),
        command=f"breaker close {shlex.quote(name)}",
        act=_post(f"/v1/breakers/{quote(name, safe='')}/close", "Close"),
    )


def _of_gate(gate: GateView) -> Iterator[Attention]:
    act: AttentionAct | UnsetType = UNSET
    show = f"gate show {gate.name}"
    why = f": {gate.text}" if gate.text else ""
    match gate.state:
        case GateState.PAUSED:
            text = f"gate {gate.name} of queue {gate.queue} is paused"
            remedy, command = "resume it", f"gate resume {gate.name}"
            act = _post(f"/v1/gates/{quote(gate.name, safe='')}/resume", "Resume")
            severity: Severity = "warn"
        case GateState.FAILING:
            text = f"gate {gate.name} of queue {gate.queue} fails{why}"
            remedy, command = "see what is wrong with its broker", show
            severity = "critical"
        case GateState.UNSERVED:
            text = f"gate {gate.name} of queue {gate.queue} does not run{why}"
            remedy, command = "start a process that runs it", f"gate run {gate.name}"
            severity = "warn"
        case GateState.HELD:
            text = f"gate {gate.name} of queue {gate.queue} is held{why}"
            remedy, command = "see why", show
            severity = "info"
        case _:
            return
    yield Attention(
        kind=f"gate_{gate.state}",
        severity=severity,
        text=_short(text),
        queue=gate.queue,
        name=gate.name,
        remedy=remedy,
        command=command,
        act=act,
    )


def _of_worker(view: WorkerView) -> Iterator[Attention]:
    if view.health is Health.HEALTHY or view.record.stopping:
        return
    is_silent = view.age_ms > ABSENT_MS
    why = "it sends no heartbeats" if is_silent else view.why
    yield Attention(
        kind=f"worker_{view.health}",
        severity="warn" if view.health is Health.UNHEALTHY else "info",
        text=_short(f"worker {view.name} is {view.health}: {why}"),
        name=view.name,
        remedy=(
            "look at its log and start it again; its jobs return to their queues"
            if is_silent
            else "see which of its jobs fail, and why"
        ),
        command="worker list" if is_silent else f"job list --worker {shlex.quote(view.name)}",
    )


def _of_versions(facts: AttentionFacts) -> Iterator[Attention]:
    others = Counter(
        each.record.version
        for each in facts.workers
        if each.age_ms <= ABSENT_MS and each.record.version not in ("", facts.version)
    )
    if facts.version and others:
        versions = ", ".join(sorted(others)[:5])
        yield Attention(
            kind="version_skew",
            severity="info",
            text=_short(
                f"{counted(others.total(), 'worker')} of another version ({versions}) than this"
                f" server ({facts.version})"
            ),
            count=others.total(),
            remedy="upgrade the workers and the server to the same version",
            command="worker list",
        )


_REMEDIES: Final[dict[str, tuple[str, str]]] = {
    "dead_letters": ("see what the dead letters have in common", "dlq groups --queue {queue}"),
    "dead_depth": ("put the dead letters back, or delete them", "dlq groups --queue {queue}"),
    "depth": ("start more workers", "scaling --queue {queue}"),
    "oldest_age": ("see how many workers it needs", "scaling --queue {queue}"),
    "no_worker": ("start a worker for it", "worker start --queues {queue}"),
    "retention": (
        "start more workers, before the store deletes the jobs",
        "scaling --queue {queue}",
    ),
    "in_flight": ("settle leased jobs sooner, or use another queue", "worker list"),
    "partition_out": ("see why it cannot be reached; it is used again by itself", "doctor"),
    "disk_floor": ("delete old jobs, or make the disk larger", "cleanup --dry-run"),
    "dead_messages": ("see whether the worker of the queue runs", "worker list"),
    "dead_message_depth": ("run upkeep, which handles the dead messages", "up"),
    "unreadable_records": ("see which records they are, and remove them", "doctor"),
}
"""The remedy and the command for each kind; `{queue}` is the name of the queue."""


def _of_alerts(facts: AttentionFacts) -> Iterator[Attention]:
    for alert, age_ms in facts.alerts:
        if alert.is_raised and age_ms <= STALE_MS:
            yield _of_remedy(
                alert.rule,
                alert.severity,
                _short(alert.text),
                queue=alert.queue,
                name="" if alert.queue else alert.about,
                count=alert.value if alert.unit != "ms" else None,
                since=alert.raised_at,
            )


def _of_remedy(
    kind: str,
    severity: Severity,
    text: str,
    *,
    queue: str = "",
    name: str = "",
    count: int | None = None,
    since: int | None = None,
) -> Attention:
    remedy, command = _REMEDIES.get(kind, ("see the documentation of the alert", "status"))
    worker = addressee(queue)
    if kind == "no_worker" and worker is not None:
        remedy, command = "start that worker", f"worker start --name {shlex.quote(worker)}"
    return Attention(
        kind=kind,
        severity=severity,
        text=text,
        remedy=remedy,
        command=command.format(queue=queue),
        queue=queue or UNSET,
        name=name or UNSET,
        count=UNSET if count is None else count,
        since=UNSET if since is None else show_at(since),
    )


def _post(path: str, label: str) -> AttentionAct:
    return AttentionAct(method="POST", path=path, label=label, body={})


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"
