"""`holdfast distribute`: jobs of many queues to one, in fair turns, until it is stopped."""

from __future__ import annotations

import asyncio
import signal
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from holdfast.app import Holdfast
from holdfast.cli.exits import NotFound
from holdfast.cli.output import COMMON, Common, print_json, print_table, say
from holdfast.cli.pages import program
from holdfast.cli.queues import one
from holdfast.cli.running import running
from holdfast.core.text import counted
from holdfast.errors import UsageError
from holdfast.events import Distributed, Happening
from holdfast.upkeep import Distribution, Distributions, Distributor
from holdfast.upkeep.distributions import check_distribution
from holdfast.upkeep.service import keep


async def distribute(
    *,
    source: Annotated[
        str | None, Parameter(name="--from", help="Queues that fit this: mail.*")
    ] = None,
    target: Annotated[str | None, Parameter(name="--to", help="The queue that they feed.")] = None,
    depth: Annotated[int, Parameter(help="As long as fewer jobs wait there.")] = 1_000,
    weight: Annotated[
        list[str] | None,
        Parameter(help="QUEUE=2 gets twice as many turns; may be repeated.", negative=()),
    ] = None,
    store: Annotated[
        bool, Parameter(help="Write it down for upkeep to do, and end.", negative=())
    ] = False,
    forget: Annotated[bool, Parameter(help="Let upkeep do it no more.", negative=())] = False,
    common: Common = COMMON,
) -> None:
    """Bring jobs of many queues to one, in fair turns.

    Runs until it is stopped; with --store upkeep does it from now on. Without --to it shows what
    is stored. Any number may run.
    """
    async with running(common) as app:
        stored = Distributions(app.engine)
        if target is None:
            if source is not None or store or forget:
                raise UsageError("--to is missing: the queue that they feed")
            _show(await stored.all(), common)
            return
        if forget:
            if not await stored.remove(target):
                raise NotFound(f"no distribution to {target[:80]!r} is stored")
            _say({"queue": target, "stored": False}, f"upkeep feeds {target} no more", common)
            return
        if source is None:
            raise UsageError("--from is missing: a pattern of queues, such as mail.*")
        wanted = Distribution(
            source=source, target=target, depth=depth, weights=_weights(weight or [])
        )
        check_distribution(wanted)
        await one(app, target)
        if not any(wanted.feeds_from(view.queue.name) for view in await app.queues(counts=False)):
            say(f"no queue beside {target} fits {source} yet: those that come will")
        if store:
            await stored.put(wanted)
            _say(msgspec.to_builtins(wanted), f"upkeep feeds {target} from {source}", common)
            return
        await _run(app, wanted, common)


async def _run(app: Holdfast, wanted: Distribution, common: Common) -> None:
    """A step that has begun is finished before it ends."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop.set)
    moved = 0

    def tell(happening: Happening) -> None:
        nonlocal moved
        if isinstance(happening, Distributed):
            moved += sum(happening.moved.values())

    if not common.json:
        say(f"feeding {wanted.target} from {wanted.source}; Ctrl-C stops it")
    try:
        await keep(Distributor(app.engine, [wanted], tell=tell), stop, tell)
    finally:
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)
    _say(
        {"queue": wanted.target, "moved": moved},
        f"brought {counted(moved, 'job')} to {wanted.target}",
        common,
    )


def _weights(given: list[str]) -> dict[str, int]:
    weights = {}
    for text in given:
        name, equals, number = text.partition("=")
        if not (name and equals and number.isascii() and number.isdigit()):
            raise UsageError(f"weight {text[:80]!r} is not like mail.big=2")
        weights[name] = int(number[:9])
    return weights


def _show(found: list[Distribution], common: Common) -> None:
    if common.json:
        print_json(msgspec.to_builtins(found))
        return
    if not found:
        say(f"nothing is stored: {program()} distribute --from 'mail.*' --to mail --store")
        return
    rows = [
        (each.target, each.source, each.depth,
         ", ".join(f"{name}={weight}" for name, weight in each.weights.items()))
        for each in found
    ]  # fmt: skip
    print_table(("queue", "fed from", "depth", "weights"), rows)


def _say(view: Any, text: str, common: Common) -> None:
    if common.json:
        print_json(view)
    else:
        print(text)
