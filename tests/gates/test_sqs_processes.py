"""Gates and distributors of SQS as programs that are killed under load."""

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.model import JobFilter, Queue, State
from holdfast.engines.base import Engine
from holdfast.engines.registry import open_engine
from holdfast.ops.gates import Gate, Gates, GateState
from holdfast.ops.workers import end_overdue_and_expired
from holdfast.testing import sqs_client
from tests.cli.program import environment
from tests.gates.sqs_program import KEYS, SqsProgram

QUICK = """
import sys
from holdfast.cli import main
from holdfast.engines.sqs import source
source.HIDDEN_S = 1
main()
"""


@pytest.fixture(scope="module")
def other() -> Iterator[SqsProgram]:
    with sqs_client() as client:
        yield SqsProgram(client)


@pytest.fixture
def variables(other: SqsProgram, tmp_path: Path) -> dict[str, str]:
    return {
        **KEYS,
        "HOLDFAST_URL": f"sqlite:///{tmp_path}/work.db?durability=relaxed",
        "HOLDFAST_BROKER_AWS": other.url,
    }


@pytest.fixture
async def store(variables: dict[str, str]) -> AsyncIterator[Engine]:
    """A file that other processes use, too."""
    engine = open_engine(variables["HOLDFAST_URL"])
    await engine.open()
    yield engine
    await engine.close()


@contextmanager
def program(variables: dict[str, str], *line: str) -> Iterator[subprocess.Popen[str]]:
    """A process whose messages return a second after its death."""
    with subprocess.Popen(
        [sys.executable, "-c", QUICK, *line, "--json"],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def stopped(started: subprocess.Popen[str]) -> Any:
    """The output of a program until it is stopped."""
    started.send_signal(signal.SIGTERM)
    out, _ = started.communicate(timeout=30)
    assert started.returncode == 0
    return json.loads(out)


@pytest.fixture
def dice() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}: set it here to repeat the run")
    return random.Random(seed)


async def test_gates_are_killed_and_nothing_is_lost(
    other: SqsProgram, store: Engine, variables: dict[str, str], dice: random.Random
) -> None:
    """Each message is exactly one job, and each job at least one message."""
    source, target = other.create("in"), other.create("out")
    await store.declare(Queue(name="mail", lease_ms=1_000))
    here: dict[str, Any] = {"broker": "aws", "queue": "mail", "prefetch": 30}
    await Gates(store).add(Gate(name="in", direction="inlet", source=source, task="t", **here))
    await Gates(store).add(Gate(name="out", direction="outlet", routing_key=target, **here))
    sent = {f"gate:in:{id_}" for id_ in other.send_many(source, [f"m{n}" for n in range(200)])}
    found: list[str] = []
    enough = dice.randrange(1, 120)
    with program(variables, "gate", "run") as started:
        while len(found) < enough:
            found += _job_ids(other.take(target, 1))
        started.send_signal(signal.SIGKILL)
    with program(variables, "gate", "run") as started:
        while not (set(found) >= sent and other.counts(source) == (0, 0)):
            found += _job_ids(other.take(target, 1))
            await end_overdue_and_expired(store, 100)
        views = await Gates(store).views()
        assert {view.state for view in views} == {GateState.RUNNING}
        counts = stopped(started)
        assert counts["enqueued"] <= 200
        assert counts["published"] >= 1
    jobs = (await store.find(JobFilter(), limit=1_000)).jobs
    assert Counter(job.id for job in jobs) == Counter(sent)
    assert set(found) == sent
    states = Counter(job.state for job in jobs)
    assert states[State.DEAD] == states[State.CANCELLED] == 0


def test_a_distributor_is_killed_and_nothing_is_lost(
    other: SqsProgram, variables: dict[str, str], dice: random.Random
) -> None:
    names = [other.create("tenant-k") for _ in range(2)]
    work = other.create("work")
    bodies = {f"{name}{n}" for name in names for n in range(30)}
    for name in names:
        other.send_many(name, [f"{name}{n}" for n in range(30)])
    found: list[str] = []
    line = ("distribute", "--broker", "aws", "--from", "tenant-k-*", "--to", work, "--depth", "30")
    enough = dice.randrange(1, 30)
    with program(variables, *line) as started:
        while len(found) < enough:
            found += [each["Body"] for each in other.take(work, 1)]
        started.send_signal(signal.SIGKILL)
    with program(variables, *line[:-1], "1000") as started:
        while any(sum(other.counts(name)) for name in names):
            found += [each["Body"] for each in other.take(work, 1)]
        assert stopped(started)["queue"] == work
    found += [each["Body"] for each in other.take_all(work)]
    assert set(found) == bodies


def _job_ids(messages: list[dict[str, Any]]) -> list[str]:
    return [each["MessageAttributes"]["holdfast.id"]["StringValue"] for each in messages]
