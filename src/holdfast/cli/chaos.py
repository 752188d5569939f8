"""`holdfast chaos`: kill and freeze workers over real jobs, and report whether any was lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Annotated, Any

from cyclopts import Parameter
from msgspec.structs import replace

from holdfast.cli.flags import option, switch
from holdfast.cli.help_pages import program
from holdfast.cli.output import COMMON, Common, Exit, print_json, say
from holdfast.cli.session import open_app
from holdfast.conformance.chaos.scenario import (
    QUEUE,
    ChaosPlan,
    ChaosRun,
    ChaosStore,
    private_store,
    store_within,
)
from holdfast.conformance.chaos.verify import ChaosFindings, percentile
from holdfast.core.text import counted
from holdfast.errors import UsageError

_SCALE = 0.4
"""Jobs run 0.04 to 2 seconds."""
_VIOLATIONS_SHOWN = 20


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class PrivateServers:
    """Servers that the run starts for itself."""

    postgres: Annotated[bool, switch("Use a private PostgreSQL, and kill and restart it too.")] = (
        False
    )
    rabbitmq: Annotated[
        bool, switch("Use a private RabbitMQ beside the store, and kill and restart it too.")
    ] = False


NO_SERVERS = PrivateServers()


async def chaos(
    *,
    seconds: Annotated[float, option("N", "Kill and freeze for this many seconds.")] = 30.0,
    kills: Annotated[
        int | None, option("N", "Kill a process this many times. [default: once every two seconds]")
    ] = None,
    workers: Annotated[int, option("N", "Start this many workers.")] = 3,
    queue: Annotated[
        str | None,
        option("NAME", "Create, use and delete this queue; required in a store with other jobs."),
    ] = None,
    seed: Annotated[int | None, option("N", "Repeat the random choices of an earlier run.")] = None,
    private: PrivateServers = NO_SERVERS,
    common: Common = COMMON,
) -> int:
    """Kill and freeze workers, and check that no job is lost.

    Without --url, it uses a private store. It kills only processes that it started.
    """
    for flag, given in (("--postgres", private.postgres), ("--rabbitmq", private.rabbitmq)):
        if given and common.url:
            raise UsageError(f"{flag} starts a private server: give either --url or {flag}")
    plan = _plan(seconds, kills, workers, seed, private)
    if private.rabbitmq:
        # This process is a client of the broker, too, and would report every outage that it causes.
        logging.getLogger("holdfast.rabbitmq").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="holdfast-chaos-") as folder:
        async with _open_store(common, Path(folder), queue, plan) as store:
            again = _repeat_command(plan, common, store)
            if not common.json:
                say(f"chaos on {store.label} for {seconds:g} s; to repeat it: {again}")
            run = ChaosRun(
                store.url,
                plan,
                Path(folder),
                queue=replace(QUEUE, name=store.queue),
                options=store.options,
                servers=store.servers,
                tell=_print_progress,
            )
            findings = await _until_interrupted(run)
    _print_progress("")
    if findings is None:
        say("stopped early: nothing was checked, and everything was cleaned up")
        return Exit.INTERRUPTED
    figures = {"again": again, **_figures(findings, run, plan)}
    if common.json:
        print_json(figures)
    else:
        _print(findings, figures)
    return Exit.DONE if findings.clean else Exit.FAILED


def _plan(
    seconds: float,
    kills: int | None,
    workers: int,
    seed: int | None,
    private: PrivateServers,
) -> ChaosPlan:
    kills = max(1, round(seconds / 2)) if kills is None else kills
    if not 1 <= seconds <= 86_400 or not 1 <= workers <= 64 or not 0 <= kills <= 100_000:
        raise UsageError("--seconds must be 1 to 86400, --workers 1 to 64 and --kills 0 to 100000")
    restarts = max(1, round(seconds / 10))
    return ChaosPlan(
        workers=workers,
        kills=kills,
        freezes=max(1, kills // 5),
        seconds=seconds,
        scale=_SCALE,
        seed=SystemRandom().randrange(1_000_000) if seed is None else seed,
        restarts=restarts if private.postgres else 0,
        broker_restarts=restarts if private.rabbitmq else 0,
    )


@contextlib.asynccontextmanager
async def _open_store(
    common: Common, home: Path, queue: str | None, plan: ChaosPlan
) -> AsyncIterator[ChaosStore]:
    name = queue or f"chaos.{plan.seed}"
    if not common.url:
        servers = {"postgres": plan.restarts > 0, "rabbitmq": plan.broker_restarts > 0}
        async with private_store(home, name, **servers) as store:
            yield store
        return
    async with (
        open_app(common, create=True) as app,
        store_within(app, name, named=bool(queue)) as store,
    ):
        yield store


async def _until_interrupted(run: ChaosRun) -> ChaosFindings | None:
    """The findings; None if interrupted. Either way, every process it started has ended."""
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(run.run())
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    try:
        return await running
    except asyncio.CancelledError:
        return None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _print(findings: ChaosFindings, figures: dict[str, Any]) -> None:
    """Print the violations, then one line of results."""
    names = {"kill": "kill", "freeze": "freeze", "restart": "restart"}
    if figures["broker_restarts"]:
        names["broker_restart"] = "broker restart"
    faults = [counted(figures[f"{key}s"], name) for key, name in names.items()]
    jobs = f"{counted(findings.jobs, 'job')}, {counted(findings.dead, 'dead letter')}"
    say(f"{jobs}; {', '.join(faults)}")
    for violation in findings.violations[:_VIOLATIONS_SHOWN]:
        say(violation)
    if len(findings.violations) > _VIOLATIONS_SHOWN:
        say(f"and {len(findings.violations) - _VIOLATIONS_SHOWN} more")
    others = len(findings.violations) - len(findings.lost)
    line = f"{len(findings.lost)} lost, {counted(findings.reruns, 're-run')}"
    line += f", recovery p99 {figures['recovery_ms_p99'] / 1000:.1f} s"
    print(line + (f", {counted(others, 'other fault')}" if others > 0 else ""))


def _figures(findings: ChaosFindings, run: ChaosRun, plan: ChaosPlan) -> dict[str, Any]:
    return {
        "seed": plan.seed,
        "seconds": plan.seconds,
        "workers": plan.workers,
        "kills": run.counts["kills"],
        "freezes": run.counts["freezes"],
        "restarts": run.counts["restarts"],
        "broker_restarts": run.counts["broker_restarts"],
        "jobs": findings.jobs,
        "done": findings.done,
        "dead": findings.dead,
        "runs": findings.runs,
        "lost": len(findings.lost),
        "lost_ids": findings.lost,
        "reruns": findings.reruns,
        "recovery_ms_p50": round(percentile(findings.recovery_ms, 0.5)),
        "recovery_ms_p99": round(percentile(findings.recovery_ms, 0.99)),
        "violations": findings.violations,
    }


def _repeat_command(plan: ChaosPlan, common: Common, store: ChaosStore) -> str:
    """The command line that repeats this run."""
    given = {
        "seconds": f"{plan.seconds:g}",
        "kills": str(plan.kills),
        "workers": str(plan.workers),
        "seed": str(plan.seed),
    }
    words = [program(), "chaos", *(f"--{name}={value}" for name, value in given.items())]
    if store.servers.store is not None:
        words.append("--postgres")
    if store.servers.broker is not None:
        words.append("--rabbitmq")
    if common.url:
        words += [f"--url={store.label}", f"--queue={store.queue}"]
    return shlex.join(words)


def _print_progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"{text:100}", end="\r", file=sys.stderr, flush=True)
