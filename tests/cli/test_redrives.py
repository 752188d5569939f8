"""`dlq retry --rate`, `--canary` and `redrive …`: redrives that upkeep does."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest

from holdfast.app.application import Holdfast
from holdfast.core.model import Failure
from holdfast.core.verdict import Bury, Complete, Settlement
from holdfast.process import wall_ms
from holdfast.upkeep import Redriver
from tests.cli import seed
from tests.cli.program import Cli, command, environment


def step(times: int = 1) -> None:
    """Run the redriver of upkeep."""

    async def work(app: Holdfast) -> None:
        redriver = Redriver(app.engine, wall_ms)
        for _ in range(times):
            while await redriver.once() == 0:
                pass

    seed.with_app(work)


def end(verdict: Bury | Complete) -> None:
    async def work(app: Holdfast) -> None:
        while leases := await app.lease("default", limit=100):
            await app.settle([Settlement(lease=each, verdict=verdict) for each in leases])

    seed.with_app(work)


@pytest.fixture
def letters(cli: Cli) -> Cli:
    for number in range(5):
        seed.dead(f"j{number}")
    return cli


def test_a_rate_makes_it_a_redrive(letters: Cli) -> None:
    started = letters("dlq", "retry", "--all", "--rate", "2/s", "--json").json
    assert (started["state"], started["total"], started["left"]) == ("running", 5, 5)
    assert (started["rate"], started["max_redrives"]) == ("2/s burst 2", 3)
    assert "@" in started["by"]
    step()
    answer = letters("redrive", "show", started["id"], "--json").json
    assert (answer["retried"], answer["left"], answer["open"]) == (2, 3, 2)
    shown = letters("redrive", "show", started["id"]).out
    assert "running" in shown
    cancelled = letters("redrive", "cancel", started["id"])
    assert cancelled.out == f"redrive {started['id']} is cancelled: 2 retried\n"
    [listed] = letters("redrive", "list", "--json").json
    assert (listed["state"], listed["text"]) == ("cancelled", f"by {started['by']}")
    assert "cancelled" in letters("redrive", "list").out
    again = letters("redrive", "cancel", started["id"])
    assert (again.code, again.err) == (0, f"redrive {started['id']} has already ended\n")
    timeline = letters("job", "timeline", "j4").out
    assert f"redriven (attempt 1) by {started['by']}: redrive {started['id']}" in timeline


def test_a_canary_goes_first(letters: Cli) -> None:
    started = letters("dlq", "retry", "--queue", "default", "--canary")
    assert started.code == 0
    id_ = started.out.strip()
    assert f"redrive show {id_}" in started.err
    step()
    assert letters("redrive", "show", id_, "--json").json["state"] == "canary"
    end(Bury(failure=Failure(type="ValueError", message="boom", exit_code=3)))
    step()
    answer = letters("redrive", "show", id_, "--json").json
    assert (answer["state"], answer["retried"], answer["recurred"]) == ("stopped", 1, 1)
    assert "recurred in job j4" in answer["text"]
    second = letters("dlq", "retry", "--all", "--canary", "--json").json["id"]
    step()
    end(Complete())
    step(2)
    answer = letters("redrive", "show", second, "--json").json
    assert (answer["state"], answer["retried"], answer["done"]) == ("finished", 5, 1)


def test_status_and_doctor_show_redrives_that_need_attention(letters: Cli) -> None:
    assert letters("status", "--json").json["redrives"] == []
    assert "redrive" not in letters("status").out
    id_ = letters("dlq", "retry", "--queue", "default", "--canary").out.strip()
    [shown] = letters("status", "--json").json["redrives"]
    assert (shown["id"], shown["state"], shown["left"]) == (id_, "running", 5)
    assert id_ in letters("status").out
    assert id_ not in letters("doctor").out
    step()
    end(Bury(failure=Failure(type="ValueError", message="boom", exit_code=3)))
    step()
    assert letters("status", "--json").json["redrives"] == []
    answer = letters("doctor").out
    assert f"redrive {id_} was stopped, with 4 dead letters left: fingerprint " in answer
    assert f"holdfast redrive show {id_}" in answer


def test_a_dry_run_starts_no_redrive(letters: Cli) -> None:
    dry = letters("dlq", "retry", "--all", "--rate", "2/s", "--dry-run")
    assert dry.out == "would retry 5 jobs\n"
    assert letters("redrive", "list", "--json").json == []
    assert letters("redrive", "list").err.startswith("there are no redrives: ")


@pytest.mark.parametrize("verb", ["show", "cancel"])
def test_an_unknown_redrive_is_not_found(letters: Cli, verb: str) -> None:
    ran = letters("redrive", verb, "nothing")
    assert (ran.code, ran.out) == (3, "")
    assert 'no redrive has the id "nothing"' in ran.err


def test_watch_ends_with_the_redrive(letters: Cli) -> None:
    async def work(app: Holdfast) -> None:
        stop = asyncio.Event()
        upkeep = asyncio.create_task(app.upkeep().run(stop))
        watching = await asyncio.create_subprocess_exec(
            *command("dlq", "retry", "--all", "--canary", "--watch", "--json"),
            env=environment(),
            stdout=subprocess.PIPE,
        )
        leases = await app.lease("default", wait="60s")
        await app.settle([Settlement(lease=each, verdict=Complete()) for each in leases])
        out, _ = await watching.communicate()
        assert watching.returncode == 0
        assert b'"state": "finished"' in out
        stop.set()
        await upkeep

    seed.with_app(work)


def test_an_interrupt_ends_only_the_display(letters: Cli, tmp_path: Path) -> None:
    watching = subprocess.Popen(
        command("dlq", "retry", "--all", "--rate", "1/h", "--watch"),
        env=environment(PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with watching:
        while not letters("redrive", "list", "--json").json:
            assert watching.poll() is None
        os.kill(watching.pid, signal.SIGINT)
        _, err = watching.communicate(timeout=60)
    [answer] = letters("redrive", "list", "--json").json
    assert watching.returncode == 130
    assert f"redrive {answer['id']} continues" in err
    assert answer["state"] == "running"
