"""Gates with a real RabbitMQ: in this process, and as programs that are killed under load."""

import asyncio
import json
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.model import Job, JobFilter, LeaseRequest, Queue, Reason, State
from holdfast.core.verdict import Complete, Settlement
from holdfast.engines.base import Engine
from holdfast.engines.registry import open_engine, open_link
from holdfast.gates import GateRunner, inlet, runner
from holdfast.gates.inlet import Inlet
from holdfast.ops.gates import Gate, Gates, GateState
from holdfast.ops.rejected import REJECTED_QUEUE
from tests.cli.program import command, environment, run_program
from tests.gates.other_program import OtherProgram, other_program


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LOOK_MS", 50)
    monkeypatch.setattr(inlet, "WAIT_MS", 100)


@pytest.fixture
async def other(amqp_url: str) -> AsyncIterator[OtherProgram]:
    async with other_program(amqp_url) as program:
        yield program


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Engine]:
    """A file that other processes use, too."""
    engine = open_engine(f"sqlite:///{tmp_path}/work.db?durability=relaxed")
    await engine.open()
    yield engine
    await engine.close()


def store_url(folder: Path) -> str:
    return f"sqlite:///{folder}/work.db?durability=relaxed"


@asynccontextmanager
async def running(engine: Engine, url: str) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(GateRunner(engine, {"main": url}).run(stop))
    yield
    stop.set()
    await task


async def until(holds: Callable[[], Any]) -> None:
    """Return as soon as it holds. Only what never comes to be takes long."""
    async with asyncio.timeout(60):
        while not await holds():  # noqa: ASYNC110 (another process makes it hold)
            await asyncio.sleep(0.02)


async def all_jobs(engine: Engine, queue: str = "mail") -> list[Job]:
    found: list[Job] = []
    after: int | None = None
    while True:
        page = await engine.find(JobFilter(queue=queue), limit=1_000, after=after)
        found += page.jobs
        after = page.after
        if after is None:
            return found


async def test_in_and_out_again(store: Engine, other: OtherProgram, amqp_url: str) -> None:
    source, target = await other.declare(), await other.declare()
    await store.declare(Queue(name="mail"))
    await Gates(store).add(_gate("in", source))
    await other.publish(
        source,
        b"\0\xffbody",
        headers={"traceparent": "00-x", "nested": {"a": [1, None]}, "number": 7},
        message_id="m1",
        correlation_id="c1",
        content_type="text/x",
        priority=3,
        expiration="60000",
    )
    async with running(store, amqp_url):
        await until(lambda: all_jobs(store))
        [job] = await all_jobs(store)
        assert (job.id, job.payload, job.content_type) == ("gate:in:m1", b"\0\xffbody", "text/x")
        assert job.priority == 3
        assert (job.expires_at or 0) - job.created_at == 60_000
        assert json.loads(job.headers["nested"]) == {"a": [1, None]}
        await Gates(store).add(
            Gate(name="out", direction="outlet", broker="main", queue="mail", routing_key=target)
        )
        await until(lambda: other.depth(target))
    sent = await other.get(target)
    assert sent is not None
    properties = sent.header.properties
    assert (sent.body, properties.message_id) == (b"\0\xffbody", job.id)
    assert (properties.correlation_id, properties.content_type) == ("c1", "text/x")
    assert (properties.priority, properties.delivery_mode) == (3, 2)
    assert 0 < int(properties.expiration or "0") <= 60_000
    assert (properties.headers or {})["traceparent"] == "00-x"
    assert (await all_jobs(store))[0].state is State.DONE
    assert await other.depth(source) == 0


HOSTILE: dict[str, dict[str, Any]] = {
    "empty": {"body": b""},
    "NULs": {"body": b"\0" * 1_000},
    "nested": {"headers": {"a": {"b": [{"c": [1, 2.5, None, True]}]}}},
    "10,000 headers": {"headers": {f"h{n}": True for n in range(10_000)}},
    "too large": {"body": b"x" * (1024 * 1024 + 1)},
    "odd type": {"content_type": "ü"},
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_any_message_is_a_job_or_a_dead_letter(
    store: Engine, other: OtherProgram, amqp_url: str, name: str
) -> None:
    source = await other.declare()
    await store.declare(Queue(name="mail"))
    given = {"body": b"x", **HOSTILE[name]}
    await other.publish(source, message_id="m1", **given)
    link = open_link(amqp_url)
    await link.open()
    step = Inlet(store, _gate("in", source), link)
    while not step.counts["received"]:
        await step.once()
    await link.close()
    assert await other.depth(source) == 0
    if name in ("10,000 headers", "too large", "odd type"):
        letters = [await store.get(job.id) for job in await all_jobs(store, REJECTED_QUEUE)]
        assert letters
        assert {job.reason for job in letters if job} == {Reason.REJECTED}
        bodies = sorted(
            (job for job in letters if job and "headers" not in job.content_type),
            key=lambda job: job.seq,
        )
        assert b"".join(job.payload for job in bodies) == given["body"]
    else:
        [job] = await all_jobs(store)
        assert job.payload == given["body"]


async def test_a_full_queue_returns_no_message_to_a_limited_source(
    store: Engine, other: OtherProgram, amqp_url: str
) -> None:
    """A quorum queue drops a message that was returned too often."""
    source = await other.declare(**{"x-queue-type": "quorum", "x-delivery-limit": 1})
    ids = [f"m{n}" for n in range(100)]
    await other.publish_many(source, ids)
    await store.declare(Queue(name="mail", max_depth=3))
    gates = [
        (link := open_link(amqp_url), Inlet(store, _gate("in", source, prefetch=20), link))
        for _ in range(2)
    ]
    for link, _ in gates:
        await link.open()
    done: set[str] = set()
    while len(done) < len(ids):
        await asyncio.gather(*(step.once() for _, step in gates))
        leases = await store.lease(LeaseRequest(queues=("mail",), limit=2))
        await store.settle([Settlement(lease=each, verdict=Complete()) for each in leases])
        done.update(lease.id for lease in leases)
    for link, _ in gates:
        await link.close()
    assert done == {f"gate:in:{id_}" for id_ in ids}


async def test_a_missing_source_is_reported_until_it_exists(
    store: Engine, other: OtherProgram, amqp_url: str
) -> None:
    source = await other.declare()
    await other.channel.queue_delete(source)
    await store.declare(Queue(name="mail"))
    gates = Gates(store)
    await gates.add(_gate("in", source))

    async def state() -> GateState:
        return (await gates.view("in")).state

    async with running(store, amqp_url):
        await until(lambda: _is(state, GateState.FAILING))
        assert source in (await gates.view("in")).text
        await other.channel.queue_declare(source, durable=True)
        await other.publish(source, message_id="m1")
        await until(lambda: all_jobs(store))
        await until(lambda: _is(state, GateState.RUNNING))
        await gates.pause("in")
        assert (await gates.view("in")).state is GateState.PAUSED
        await until(lambda: _no_consumer(other, source))
        await other.publish(source, message_id="m2")
        await gates.pause("in", paused=False)
        await until(lambda: _count_is(store, 2))
        await gates.remove("in")
        await until(lambda: _no_consumer(other, source))
    assert await gates.all() == []


@pytest.mark.parametrize("place", ["wrong:secret@", "no vhost"])
async def test_a_broker_that_refuses_is_reported_without_its_password(
    store: Engine, amqp_url: str, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    scheme, _, rest = amqp_url.partition("://")
    url = f"{scheme}://{place}{rest.rpartition('@')[2]}"
    if place == "no vhost":
        url = f"{amqp_url.rpartition('/')[0]}/missing-{os.getpid()}"
    await store.declare(Queue(name="mail"))
    await Gates(store).add(_gate("in", "anything"))

    async def is_failing() -> bool:
        return (await Gates(store).view("in")).state is GateState.FAILING

    async with running(store, url):
        await until(is_failing)
    text = caplog.text
    assert "gate in failed" in text
    assert "secret" not in text
    assert rest.rpartition("@")[0] not in text or "@" not in rest


async def test_gates_as_programs(
    store: Engine, other: OtherProgram, amqp_url: str, tmp_path: Path
) -> None:
    """The commands, from adding a gate to a stop by SIGTERM."""
    source, target = await other.declare(), await other.declare()
    variables: dict[str, Any] = {
        "HOLDFAST_URL": store_url(tmp_path),
        "HOLDFAST_BROKER_MAIN": amqp_url,
    }
    add = ("gate", "add", "in", "--broker", "main", "--source", source, "--queue", "default")
    assert run_program(tmp_path, *add, "--task", "t", **variables).code == 0
    out = ("gate", "add", "out", "--broker", "main", "--queue", "default", "--routing-key", target)
    assert run_program(tmp_path, *out, **variables).code == 0
    again = run_program(tmp_path, *out, **variables)
    assert (again.code, "exists already" in again.err) == (2, True)
    await other.publish_many(source, [f"m{n}" for n in range(60)])
    with program(tmp_path, variables) as started:
        await until(lambda: _depth_is(other, target, 60))
        shown = run_program(tmp_path, "gate", "list", "--json", **variables).json
        assert {each["name"] for each in shown} == {"in", "out"}
        started.send_signal(signal.SIGTERM)
        assert started.wait(30) == 0
        counts = json.loads(started.stdout.read() if started.stdout else "")
    assert (counts["enqueued"], counts["published"]) == (60, 60)
    assert await other.depth(source) == 0


async def test_killed_under_load_nothing_is_lost(
    store: Engine, other: OtherProgram, amqp_url: str, tmp_path: Path
) -> None:
    """Two processes run an inlet and an outlet; one of them is killed twice. Each confirmed
    message is exactly one job, and each job at least one message."""
    seed = random.randrange(2**32)
    print(f"seed {seed}: set it in this test to repeat the run")
    dice = random.Random(seed)
    source, target = await other.declare(), await other.declare()
    await store.declare(Queue(name="mail", lease_ms=2_000))
    await Gates(store).add(_gate("in", source, prefetch=50))
    await Gates(store).add(
        Gate(
            name="out",
            direction="outlet",
            broker="main",
            queue="mail",
            routing_key=target,
            prefetch=50,
        )
    )
    ids = [f"m{n}" for n in range(400)]
    variables = {"HOLDFAST_URL": store_url(tmp_path), "HOLDFAST_BROKER_MAIN": amqp_url}

    async def kill_some() -> None:
        for _ in range(2):
            enough = await other.depth(target) + dice.randrange(1, 80)
            with program(tmp_path, variables) as started:
                await until(partial(_is_deeper, other, target, enough))
                started.send_signal(signal.SIGKILL)

    async with asyncio.TaskGroup() as group:
        group.create_task(other.publish_many(source, ids))
        group.create_task(kill_some())

    async def is_done() -> bool:
        jobs = await all_jobs(store)
        return len(jobs) >= len(ids) and {job.state for job in jobs} == {State.DONE}

    # Leases of killed processes expire: `worker` upkeep ends them.
    with program(tmp_path, variables), upkeep(tmp_path, variables):
        await until(is_done)
    assert Counter(job.id for job in await all_jobs(store)) == {f"gate:in:{id_}": 1 for id_ in ids}
    sent = Counter(each.header.properties.message_id for each in await other.get_all(target))
    assert set(sent) == {f"gate:in:{id_}" for id_ in ids}
    assert await other.depth(source) == 0


async def test_a_worker_runs_gates(
    store: Engine, other: OtherProgram, amqp_url: str, tmp_path: Path
) -> None:
    source = await other.declare()
    await Gates(store).add(
        Gate(
            name="in",
            direction="inlet",
            broker="main",
            queue="default",
            source=source,
            task="command",
            content_type="application/json",
        )
    )
    body = b'{"command":["true"]}'
    await other.publish(source, body, message_id="m1")
    variables = {"HOLDFAST_URL": store_url(tmp_path)}
    with upkeep(tmp_path, variables, "--broker", f"main={amqp_url}"):
        await until(lambda: _state_is(store, "gate:in:m1", State.DONE))


@contextmanager
def program(folder: Path, variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with ExitStack() as stack:
        started = stack.enter_context(
            subprocess.Popen(
                command("gate", "run", "--json"),
                cwd=folder,
                env=environment(**variables),
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(started.kill)
        yield started


@contextmanager
def upkeep(folder: Path, variables: dict[str, str], *flags: str) -> Iterator[None]:
    with subprocess.Popen(
        command("worker", "start", "--json", *flags),
        cwd=folder,
        env=environment(**variables),
        stdout=subprocess.DEVNULL,
    ) as started:
        try:
            yield
        finally:
            started.send_signal(signal.SIGINT)
            started.wait(30)


def _gate(name: str, source: str, **fields: Any) -> Gate:
    return Gate(
        name=name, direction="inlet", broker="main", queue="mail", source=source, task="t", **fields
    )


async def _is(read: Callable[[], Any], wanted: object) -> bool:
    return bool(await read() is wanted)


async def _no_consumer(other: OtherProgram, queue: str) -> bool:
    answer = await other.channel.queue_declare(queue, passive=True)
    return answer.consumer_count == 0


async def _count_is(engine: Engine, count: int) -> bool:
    return len(await all_jobs(engine)) == count


async def _depth_is(other: OtherProgram, queue: str, depth: int) -> bool:
    return await other.depth(queue) == depth


async def _is_deeper(other: OtherProgram, queue: str, depth: int) -> bool:
    return await other.depth(queue) >= depth


async def _state_is(engine: Engine, id: str, state: State) -> bool:
    job = await engine.get(id)
    return job is not None and job.state is state
