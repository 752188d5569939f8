"""Gates: add, pause and remove them, and see which processes run them and how.

A gate is a record without secrets. Each process that runs it has a record too: its state, its last
error and its counts. The runner in `gates` moves the messages.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Final, Literal

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds, checks
from holdfast.core.bounds import Count, Instant
from holdfast.core.model import COMMAND_TASK, WEBHOOK_TASK
from holdfast.engines.base import Engine
from holdfast.errors import ConfigError, Exists, InvalidJob, NotFound, UsageError
from holdfast.notation.durations import show_at
from holdfast.notation.templates import expand, is_literal, parse
from holdfast.ops.records import RecordKind, check_same
from holdfast.ops.rejected import is_part_id

GATE_KIND: Final = "gate"
GATE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}\Z")
PREFETCH: Final = 500
_TEMPLATE_MAX = 1_000
_PLACE_BYTES_MAX = 255

MESSAGE_FIELDS: Final = (
    "message_id",
    "correlation_id",
    "type",
    "reply_to",
    "routing_key",
    "exchange",
    "content_type",
    "group",
    "tenant",
    "sent_at",
    "receive_count",
    "header.NAME",
)
"""The placeholders of an inlet's templates."""
JOB_FIELDS: Final = ("id", "task", "queue", "tenant", "group", "key", "label.NAME", "header.NAME")
"""The placeholders of an outlet's templates."""

GATE_RUN_KIND: Final = "gate-run"
BEAT_MS: Final = 10 * bounds.SECOND_MS
"""How often a process that runs a gate writes its record."""
ABSENT_MS: Final = 3 * BEAT_MS
"""A process whose record is older than this does not run the gate any more."""
GATES_MAX: Final = 200
"""Gates of one store that are run and shown, the first in alphabetical order."""

COUNTS: Final = {
    "received": "Messages that inlets received, those delivered again included.",
    "enqueued": "Jobs that inlets enqueued.",
    "duplicates": "Messages whose job already existed.",
    "adopted": "Dead letters of brokers that inlets adopted.",
    "rejected": "Messages that inlets kept as dead letters.",
    "published": "Messages that outlets published, and the broker stored.",
    "failed": "Attempts of outlets that failed.",
}
"""The counts of a gate, and what they count."""

_NAME_MAX = 200
_TEXT_MAX = 500
_VARIABLE = "HOLDFAST_BROKER_"
_HASHED = "sha256-"
_ID_MAX = len("gate:") + 40 + len(":") + len(_HASHED) + 64

Direction = Literal["inlet", "outlet"]
Short = Annotated[str, msgspec.Meta(max_length=_TEMPLATE_MAX)]


class Gate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A gate between a queue and a broker.

    An inlet receives from `source`, a queue at the broker, and enqueues in `queue`; `task`,
    `tenant`, `group` and `key` are templates, and `content_type` is that of messages without one.
    With `dead` its messages become dead letters of `queue`, which can be redriven.
    An outlet leases from `queue` and publishes to `exchange` with the template `routing_key`. At
    most `prefetch` messages or jobs are in flight in each process.
    """

    name: str
    direction: Direction
    broker: str
    queue: str
    source: Short = ""
    task: Short = ""
    tenant: Short | None = None
    group: Short | None = None
    key: Short | None = None
    content_type: Short = ""
    dead: bool = False
    exchange: Short = ""
    routing_key: Short = ""
    prefetch: Annotated[int, msgspec.Meta(ge=1, le=bounds.BATCH_MAX)] = PREFETCH
    paused: bool = False


class GateState(StrEnum):
    """`held`: the queue takes or gives no jobs. `unserved`: no process runs the gate."""

    RUNNING = "running"
    HELD = "held"
    FAILING = "failing"
    PAUSED = "paused"
    UNSERVED = "unserved"


class GateRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A gate in one process, since `started_at`. `text` says why it is held or fails."""

    gate: str
    queue: str
    state: GateState
    text: Annotated[str, msgspec.Meta(max_length=_TEXT_MAX)] = ""
    host: Annotated[str, msgspec.Meta(max_length=_NAME_MAX)] = ""
    pid: Count = 0
    started_at: Instant = 0
    counts: Annotated[dict[str, Count], msgspec.Meta(max_length=50)] = {}


def check_gate(gate: Gate) -> None:
    """Raise ConfigError unless every field is within its bounds and fits the direction."""
    if not GATE_NAME.match(gate.name):
        raise ConfigError(
            f"gate name {gate.name[:80]!r} is not valid: use 1 to 40 characters of A-Z a-z 0-9"
            " _ . -"
        )
    if not GATE_NAME.match(gate.broker):
        raise ConfigError(
            f"broker name {gate.broker[:80]!r} is not valid: use 1 to 40 characters of A-Z a-z 0-9"
            " _ . -"
        )
    checks.check_queue_name(gate.queue)
    if gate.direction == "inlet":
        _check_inlet(gate)
    else:
        _check_outlet(gate)


def _check_inlet(gate: Gate) -> None:
    _refuse(gate, ("exchange", "routing_key"))
    _check_place("source", gate.source)
    if not gate.source:
        raise ConfigError(f"gate {gate.name} has no source: name the queue at the broker")
    if not gate.task:
        raise ConfigError(f"gate {gate.name} has no task: name the task of its jobs")
    if is_literal(gate.task) and not bounds.TASK_NAME.match(expand(gate.task, _nothing)):
        raise ConfigError(
            f"task {gate.task[:80]!r} is not valid: use 1 to 200 characters of A-Z a-z 0-9 _ . :"
            " / - and placeholders"
        )
    if gate.content_type and not bounds.CONTENT_TYPE.match(gate.content_type):
        raise ConfigError(f"content_type {gate.content_type[:80]!r} is not a content type")
    for name in ("task", "tenant", "group", "key"):
        _check_template(name, getattr(gate, name) or "", MESSAGE_FIELDS)


def _check_outlet(gate: Gate) -> None:
    _refuse(gate, ("source", "task", "tenant", "group", "key", "content_type", "dead"))
    _check_place("exchange", gate.exchange)
    if not gate.exchange and not gate.routing_key:
        raise ConfigError(
            f"gate {gate.name} has neither an exchange nor a routing key: give one of them"
        )
    _check_template("routing_key", gate.routing_key, JOB_FIELDS)


def _refuse(gate: Gate, names: Iterable[str]) -> None:
    for name in names:
        if getattr(gate, name):
            raise ConfigError(f"gate {gate.name} is an {gate.direction}: it has no {name}")


def _check_place(name: str, value: str) -> None:
    if not value:
        return
    try:
        checks.check_text(name, value)
    except UsageError as error:
        raise ConfigError(str(error)) from None
    if len(value.encode()) > _PLACE_BYTES_MAX:
        raise ConfigError(f"{name} {value[:80]!r}… is over {_PLACE_BYTES_MAX} bytes")


def _check_template(name: str, template: str, fields: Iterable[str]) -> None:
    known = tuple(fields)
    for part in parse(template):
        if isinstance(part, str):
            if part:
                _check_place(f"the text of {name}", part[:_PLACE_BYTES_MAX])
            continue
        general, dot, _ = part.name.partition(".")
        if (f"{general}.NAME" if dot else general) not in known:
            raise ConfigError(
                f"{name} {template[:80]!r}: unknown placeholder {{{part.name[:80]}}}; use"
                f" {', '.join(f'{{{field}}}' for field in known)}"
            )


def _check_stored(key: str, gate: Gate) -> None:
    check_same("name", gate.name, key)
    check_gate(gate)


def _check_run(key: str, run: GateRun) -> None:
    check_same("gate", run.gate, key.partition("/")[0])


GATES = RecordKind(
    GATE_KIND, Gate, remedy="remove it and add it again", strict=True, check=_check_stored
)
GATE_RUNS = RecordKind(GATE_RUN_KIND, GateRun, label="gate run", check=_check_run)
"""By `GATE/PROCESS`."""


class GateView(msgspec.Struct, frozen=True, kw_only=True):
    """A gate and the processes that run it: their number, and the sum of their counts since they
    started. `text` says why the gate is held, fails or is not served. `notes` are what its
    settings imply."""

    name: str
    direction: Direction
    state: GateState
    text: str
    broker: str
    queue: str
    source: str
    task: str
    tenant: str | None
    group: str | None
    key: str | None
    content_type: str
    dead: bool
    exchange: str
    routing_key: str
    prefetch: int
    processes: int
    since: str | None
    counts: dict[str, int]
    notes: tuple[str, ...]


class Gates:
    """The gates of one store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def add(self, gate: Gate) -> None:
        """Store a new gate. The processes that were given its broker run it within seconds."""
        check_gate(gate)
        if not await GATES.create(self._engine, gate.name, gate):
            raise Exists(f"gate {gate.name} exists already: remove it first")

    async def put(self, gate: Gate) -> Gate:
        """Store a gate, or replace it; a paused gate stays paused."""
        check_gate(gate)

        def change(old: Gate | None) -> Gate:
            new = gate if old is None else replace(gate, paused=old.paused or gate.paused)
            return old if old is not None and old == new else new

        stored = await GATES.update(self._engine, gate.name, change)
        assert stored is not None
        return stored

    async def pause(self, name: str, *, paused: bool = True) -> Gate:
        """Stop a gate until it is resumed, or resume it. Raises NotFound."""

        def change(old: Gate | None) -> Gate:
            if old is None:
                raise unknown_gate(name)
            return old if old.paused == paused else replace(old, paused=paused)

        stored = await GATES.update(self._engine, _checked(name), change)
        assert stored is not None
        return stored

    async def remove(self, name: str) -> bool:
        """Remove a gate, readable or not; False if there is none. Jobs and messages stay."""
        return GATE_NAME.match(name) is not None and await GATES.remove(self._engine, name)

    async def get(self, name: str) -> Gate:
        """One gate. Raises NotFound, or ConfigError if it cannot be read."""
        found = await GATES.read(self._engine, _checked(name))
        if found is None:
            raise unknown_gate(name)
        return GATES.require(found.record)

    async def all(self) -> list[Gate]:
        """Every readable gate by name, at most `GATES_MAX`."""
        found = []
        async for stored in GATES.read_all(self._engine):
            if stored.value is not None:
                found.append(stored.value)
            if len(found) >= GATES_MAX:
                break
        return found

    async def view(self, name: str) -> GateView:
        """One gate as people read it. Raises NotFound."""
        gate = await self.get(name)
        return gate_view(gate, (await self._runs()).get(name, ()))

    async def views(self) -> list[GateView]:
        """Every readable gate as people read it."""
        gates = await self.all()
        runs = await self._runs() if gates else {}
        return [gate_view(gate, runs.get(gate.name, ())) for gate in gates]

    async def _runs(self) -> dict[str, list[GateRun]]:
        """The processes that run gates now, by gate."""
        found: dict[str, list[GateRun]] = {}
        async for stored in GATE_RUNS.read_all(self._engine):
            if stored.value is not None and stored.age_ms <= ABSENT_MS:
                found.setdefault(stored.value.gate, []).append(stored.value)
        return found


def gate_view(gate: Gate, runs: Sequence[GateRun]) -> GateView:
    """A gate as people read it, with the processes that run it."""
    state, text = _state(gate, runs)
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run.counts)
    return GateView(
        name=gate.name,
        direction=gate.direction,
        state=state,
        text=text,
        broker=gate.broker,
        queue=gate.queue,
        source=gate.source,
        task=gate.task,
        tenant=gate.tenant,
        group=gate.group,
        key=gate.key,
        content_type=gate.content_type,
        dead=gate.dead,
        exchange=gate.exchange,
        routing_key=gate.routing_key,
        prefetch=gate.prefetch,
        processes=len(runs),
        since=show_at(min(run.started_at for run in runs)) if runs else None,
        counts={name: counts[name] for name in COUNTS if counts[name]},
        notes=_notes(gate),
    )


def _state(gate: Gate, runs: Sequence[GateRun]) -> tuple[GateState, str]:
    """A gate runs if one process can run it; the text is that of a process that cannot."""
    if gate.paused:
        return GateState.PAUSED, ""
    if not runs:
        remedy = f"start one with --broker {gate.broker}=URL, or {broker_variable(gate.broker)}"
        # One that was given the broker may not have read the gate yet.
        return GateState.UNSERVED, f"no process runs it: {remedy}"
    order = (GateState.RUNNING, GateState.HELD, GateState.FAILING)
    states = {run.state for run in runs}
    state = next((each for each in order if each in states), GateState.FAILING)
    text = next((run.text for each in reversed(order) for run in runs if run.state is each), "")
    return state, text


def _notes(gate: Gate) -> tuple[str, ...]:
    if gate.direction == "outlet":
        return ("each job becomes at least one message, with the id of the job",)
    noun = "dead letter" if gate.dead else "job"
    return (
        f"each message with a message id becomes exactly one {noun}",
        f"a message without one becomes at least one {noun}"
        + (", unless its key is held" if gate.key else ""),
    )


def unknown_gate(name: str) -> NotFound:
    """The error for a gate that does not exist."""
    return NotFound(f'gate "{name[:80]}" does not exist; see "holdfast gate list"')


def broker_variable(name: str) -> str:
    """The environment variable that holds the URL of a broker."""
    return _VARIABLE + re.sub(r"[^A-Z0-9]", "_", name.upper())


def broker_urls(given: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The URLs of brokers by name, from `NAME=URL` texts, and those in the environment by variable:
    see `url_of`. Raises ConfigError, which does not repeat the URL."""
    found = {}
    for text in given:
        name, equals, url = text.partition("=")
        if not equals or not GATE_NAME.match(name) or ":" not in url:
            shown = name[:40] if equals and GATE_NAME.match(name) else "…"
            raise ConfigError(f"--broker {shown}: expected NAME=URL such as main=amqp://host")
        if name in found:
            raise ConfigError(f"--broker {name} is given twice: give each broker another name")
        found[name] = url
    for variable, url in environment.items():
        if variable.startswith(_VARIABLE) and url:
            found.setdefault(variable, url)
    return found


def url_of(broker: str, urls: Mapping[str, str]) -> str | None:
    """The URL of a broker: by its name, or by its environment variable; None if it has none."""
    return urls.get(broker) or urls.get(broker_variable(broker))


def _checked(name: str) -> str:
    if not GATE_NAME.match(name):
        raise unknown_gate(name)
    return name


def may_run_commands(gate: Gate) -> bool:
    """Whether an inlet's jobs run commands or send requests, by the literal task of the gate. A
    message cannot choose such a task: see `check_chosen_task`."""
    return is_literal(gate.task) and expand(gate.task, _nothing) in (COMMAND_TASK, WEBHOOK_TASK)


def check_chosen_task(gate: Gate, task: str) -> None:
    """Raise InvalidJob if a message chose a task that runs a program or sends a request: whoever
    may write to the broker would run commands on the workers."""
    if task in (COMMAND_TASK, WEBHOOK_TASK) and not is_literal(gate.task):
        raise InvalidJob(
            f"a message cannot choose the task {task}: only a gate whose task is just {task} may"
            " have it"
        )


def message_job_id(gate: str, message_id: str) -> str:
    """The id of the job for a message: the same whenever the message is delivered. One that no job
    can have, or that a part of a rejected message may have, is replaced by its hash."""
    plain = f"gate:{gate}:{message_id}"
    is_plain = len(plain) <= _ID_MAX and bounds.JOB_ID.match(plain)
    if is_plain and not message_id.startswith(_HASHED) and not is_part_id(message_id):
        return plain
    digest = sha256(message_id.encode(errors="surrogatepass")).hexdigest()
    return f"gate:{gate}:{_HASHED}{digest}"


def _nothing(_name: str) -> None:
    return None
