"""`holdfast gate …`: add, list, pause and run gates between queues and message brokers."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from holdfast.app.application import Holdfast
from holdfast.cli.flags import BrokerUrls, option, switch, urls_of_brokers
from holdfast.cli.help_pages import program
from holdfast.cli.output import (
    COMMON,
    Common,
    print_either,
    print_json,
    print_table,
    say,
)
from holdfast.cli.session import open_app
from holdfast.core.text import printable
from holdfast.errors import ConfigError, NotFound, UsageError
from holdfast.events import GateMoved, ProcessEvent
from holdfast.ops.gates import (
    COUNTS,
    PREFETCH,
    Gate,
    Gates,
    GateView,
    broker_variable,
    gate_view,
    url_of,
)
from holdfast.ops.queues import find_queue
from holdfast.ops.views import plain

Name = Annotated[str, Parameter(help="Name of the gate.")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class GateFlags:
    """Settings of a gate. With --source it is an inlet, otherwise an outlet."""

    broker: Annotated[
        str, option("NAME", "Name of the broker. The processes that run the gate get its URL.")
    ]
    queue: Annotated[str, option("NAME", "Inlet: enqueue in this queue. Outlet: publish its jobs.")]
    source: Annotated[
        str, option("NAME", "Inlet: receive messages from this queue of the broker.")
    ] = ""
    task: Annotated[
        str, option("TEMPLATE", "Inlet: task of the jobs, e.g. send or {header.kind|send}.")
    ] = ""
    tenant: Annotated[str | None, option("TEMPLATE", "Inlet: tenant, e.g. {header.customer}.")] = (
        None
    )
    group: Annotated[str | None, option("TEMPLATE", "Inlet: group, e.g. {routing_key}.")] = None
    key: Annotated[
        str | None,
        option("TEMPLATE", "Inlet: once-only key. [default: from the gate and the message id]"),
    ] = None
    content_type: Annotated[
        str,
        option("TYPE", "Inlet: content type of messages without one, e.g. application/json."),
    ] = ""
    dead: Annotated[
        bool, switch("Inlet: the source is a dead-letter queue; keep its messages as dead letters.")
    ] = False
    exchange: Annotated[str, option("NAME", "Outlet: publish to this exchange of the broker.")] = ""
    routing_key: Annotated[
        str,
        option(
            "TEMPLATE",
            "Outlet: routing key, e.g. {task}; without --exchange, the queue to send to.",
        ),
    ] = ""
    prefetch: Annotated[
        int, option("N", "Hold at most this many messages or jobs in each process.")
    ] = PREFETCH

    def gate(self, name: str) -> Gate:
        """The gate. Raises UsageError."""
        if "=" in self.broker:
            raise UsageError(
                "--broker takes only the name here, because gates hold no secrets: give NAME=URL to"
                f' the processes that run the gate, as in "{program()} gate run"'
            )
        if not self.source and not self.exchange and not self.routing_key:
            raise UsageError(
                "give --source for an inlet, or --exchange or --routing-key for an outlet"
            )
        return Gate(
            name=name,
            direction="inlet" if self.source else "outlet",
            broker=self.broker,
            queue=self.queue,
            source=self.source,
            task=self.task,
            tenant=self.tenant,
            group=self.group,
            key=self.key,
            content_type=self.content_type,
            dead=self.dead,
            exchange=self.exchange,
            routing_key=self.routing_key,
            prefetch=self.prefetch,
        )


async def list_all(*, common: Common = COMMON) -> None:
    """List gates, their state and what they moved."""
    async with open_app(common) as app:
        views = await Gates(app.engine).views()
    if common.json:
        print_json([plain(view) for view in views])
    elif views:
        print_gates(views)
    else:
        say(f'there are no gates: add one with "{program()} gate add"')


async def show(name: Name, /, *, common: Common = COMMON) -> None:
    """Show a gate: its settings, its state and what it moved."""
    async with open_app(common) as app:
        view = await Gates(app.engine).view(name)
    if common.json:
        print_json(plain(view))
        return
    fields = plain(view)
    counts, notes = fields.pop("counts"), fields.pop("notes")
    for field, value in {**fields, **counts}.items():
        if value not in (None, "") and (value != 0 or field == "processes"):
            print(f"{field:12}  {printable(str(value), one_line=True)}")
    for note in notes:
        print(f"{'note':12}  {note}")


async def add(name: Name, /, *, flags: GateFlags, common: Common = COMMON) -> None:
    """Add a gate between a queue and a message broker.

    An inlet turns the messages of a queue at the broker into jobs; an outlet publishes jobs.

      holdfast gate add in --broker b --source orders --queue mail --task send
      holdfast gate add out --broker b --queue mail --routing-key {task}
    """
    gate = flags.gate(name)
    async with open_app(common, create=True) as app:
        if await find_queue(app.engine, gate.queue) is None:
            create = f"{program()} queue create {gate.queue}"
            raise NotFound(f'queue {gate.queue} does not exist: create it with "{create}"')
        await Gates(app.engine).add(gate)
    view = gate_view(gate, ())
    print_either(plain(view), f"added {gate.direction} {name}", common)
    if not common.json:
        variable = broker_variable(gate.broker)
        say(f"processes with --broker {gate.broker}=URL, or {variable}, run it within seconds")


async def pause(name: Name, /, *, common: Common = COMMON) -> None:
    """Pause a gate in all processes until it is resumed."""
    await _pause(name, common, paused=True)


async def resume(name: Name, /, *, common: Common = COMMON) -> None:
    """Resume a gate."""
    await _pause(name, common, paused=False)


async def remove(name: Name, /, *, common: Common = COMMON) -> None:
    """Remove a gate. Its jobs, and messages at the broker, stay."""
    async with open_app(common) as app:
        gates = Gates(app.engine)
        view = await gates.view(name)
        await gates.remove(name)
    print_either(plain(view), f"removed gate {name}", common)


async def run(
    names: Annotated[list[str] | None, Parameter(help="Names of the gates.", negative=())] = None,
    /,
    *,
    broker: BrokerUrls = None,
    common: Common = COMMON,
) -> None:
    """Run the named gates, or all gates, in the foreground.

    Any number of processes may run the same gate. Without names, gates that are added later are
    run, too. Workers and servers with --broker also run gates.
    """
    from holdfast.gates import GateRunner

    urls = urls_of_brokers(broker)
    if not urls:
        raise UsageError(
            "no broker is given: give --broker NAME=URL, or set HOLDFAST_BROKER_NAME=URL"
        )
    async with open_app(common, create=not names) as app:
        await _check_brokers(app, names, urls)
        moved: Counter[str] = Counter()

        def count(event: ProcessEvent) -> None:
            if isinstance(event, GateMoved):
                moved.update(event.counts)

        app.listeners.add(count)
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        runner = GateRunner(app.engine, urls, names=names, tell=app.listeners)
        if not common.json:
            say(f"running {', '.join(names) if names else 'all gates'}; Ctrl-C stops")
        async with asyncio.TaskGroup() as group:
            group.create_task(app.telemetry.run(stop))
            await runner.run(stop)
    done = {name: moved[name] for name in COUNTS}
    text = ", ".join(f"{count:,} {name}" for name, count in done.items() if count)
    print_either(done, text or "nothing was moved", common)


async def _check_brokers(app: Holdfast, names: list[str] | None, urls: dict[str, str]) -> None:
    """Refuse an unknown gate, or one whose broker has no URL here."""
    for name in names or ():
        gate = await Gates(app.engine).get(name)
        if url_of(gate.broker, urls) is None:
            raise ConfigError(
                f"gate {name} uses the broker {gate.broker}: give --broker {gate.broker}=URL, or"
                f" {broker_variable(gate.broker)}"
            )


async def _pause(name: str, common: Common, *, paused: bool) -> None:
    async with open_app(common) as app:
        gates = Gates(app.engine)
        await gates.pause(name, paused=paused)
        view = await gates.view(name)
    print_either(plain(view), f"{'paused' if paused else 'resumed'} gate {name}", common)


def print_gates(views: list[GateView]) -> None:
    """Print gates as a table."""
    rows = []
    for view in views:
        is_inlet = view.direction == "inlet"
        there = f"{view.broker}:{view.source if is_inlet else view.exchange or view.routing_key}"
        names = ("enqueued", "adopted") if is_inlet else ("published",)
        moved = sum(view.counts.get(name, 0) for name in names)
        failed = view.counts.get("rejected" if is_inlet else "failed", 0)
        ends = (there, view.queue) if is_inlet else (view.queue, there)
        rows.append((view.name, view.direction, *ends, str(view.state), moved, failed, view.text))
    columns = ("gate", "direction", "from", "to", "state", "moved", "failed", "why")
    print_table(columns, rows, less=("direction",), prose=("why",))
