"""The runner: which gates run where, how they are stopped, and what it writes about them."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from msgspec.structs import replace

from holdfast.core.model import JobFilter, NewJob, Queue, Receipt, Record
from holdfast.engines.base import Engine
from holdfast.engines.broker import Message
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable
from holdfast.events import GateChanged, GateMoved, Troubled
from holdfast.gates import runner
from holdfast.gates.runner import GateRunner, GateService
from holdfast.ops.gates import GATE_RUNS, Gate, Gates, GateState, GateView
from holdfast.ops.records import scan
from holdfast.testing.clock import ManualClock
from tests.gates.scripted_broker import ScriptedBroker
from tests.upkeep.faulty_engine import RecordingListener

INLET = Gate(name="in", direction="inlet", broker="main", queue="default", source="s", task="t")
OUTLET = Gate(name="out", direction="outlet", broker="main", queue="default", routing_key="k")
URLS = {"main": "test://user:secret@host"}


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[MemoryEngine]:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def gates(
    store: Engine, broker: ScriptedBroker, listener: RecordingListener
) -> AsyncIterator[GateRunner]:
    made = GateRunner(store, URLS, open_link=broker.open_link, tell=listener)
    yield made
    await made._stop(list(made._running))


@pytest.fixture
def listener() -> RecordingListener:
    return RecordingListener()


async def view(store: Engine, name: str = "in") -> GateView:
    return await Gates(store).view(name)


async def jobs(store: Engine) -> set[str]:
    return {job.id for job in (await store.find(JobFilter(), limit=1_000)).jobs}


async def settled() -> None:
    """Let the loops of the gates run until they wait."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_a_gate_runs_once_it_is_added(
    store: Engine, gates: GateRunner, broker: ScriptedBroker, listener: RecordingListener
) -> None:
    assert await gates.once() == runner.LOOK_MS
    await Gates(store).add(INLET)
    assert (await view(store)).state is GateState.UNSERVED
    broker.put("s", Message(message_id="m1"))
    await gates.once()
    await settled()
    assert await jobs(store) == {"gate:in:m1"}
    assert broker.urls == [URLS["main"]]
    gates._written.clear()
    await gates.once()
    found = await view(store)
    assert (found.state, found.text, found.processes) == (GateState.RUNNING, "", 1)
    assert found.counts == {"received": 1, "enqueued": 1}
    assert GateMoved(gate="in", counts={"received": 1, "enqueued": 1}) in listener.events


async def test_gates_of_other_brokers_and_names_do_not_run(
    store: Engine, broker: ScriptedBroker
) -> None:
    for gate in (INLET, replace(INLET, name="other", broker="b2"), replace(INLET, name="in2")):
        await Gates(store).add(gate)
    made = GateRunner(store, URLS, names=["in"], open_link=broker.open_link)
    await made.once()
    assert list(made._running) == ["in"]
    await made._stop(["in"])
    by_variable = GateRunner(store, {"HOLDFAST_BROKER_B2": "x:"}, open_link=broker.open_link)
    await by_variable.once()
    assert list(by_variable._running) == ["other"]
    await by_variable._stop(["other"])


@pytest.mark.parametrize("how", ["pause", "remove", "change"])
async def test_a_change_takes_effect_at_the_next_look(
    store: Engine, gates: GateRunner, broker: ScriptedBroker, how: str
) -> None:
    await Gates(store).add(INLET)
    await gates.once()
    await settled()
    [link] = broker.links
    match how:
        case "pause":
            await Gates(store).pause("in")
        case "remove":
            await Gates(store).remove("in")
        case _:
            await Gates(store).put(replace(INLET, source="s2"))
    broker.put("s2", Message(message_id="m1"))
    await gates.once()
    await settled()
    assert not link.is_open
    assert await jobs(store) == ({"gate:in:m1"} if how == "change" else set())
    runs = [record.key async for record in scan(store, GATE_RUNS.name)]
    assert len(runs) == (1 if how == "change" else 0)


async def test_a_paused_gate_resumes(
    store: Engine, gates: GateRunner, broker: ScriptedBroker
) -> None:
    await Gates(store).add(INLET)
    await gates.once()
    await Gates(store).pause("in")
    await gates.once()
    broker.put("s", Message(message_id="m1"))
    await settled()
    assert (await view(store)).state is GateState.PAUSED
    assert await jobs(store) == set()
    await Gates(store).pause("in", paused=False)
    await gates.once()
    await settled()
    assert await jobs(store) == {"gate:in:m1"}


async def test_a_failing_gate_is_reported_and_recovers(
    store: Engine, broker: ScriptedBroker, listener: RecordingListener
) -> None:
    service = GateService(store, INLET, lambda: broker.open_link("x:"), listener)
    broker.missing = {"s"}
    for _ in range(2):
        with pytest.raises(Exception, match="does not exist at the broker"):
            await service.once()
    state, text = service.state
    assert (state, "does not exist" in text) == (GateState.FAILING, True)
    broker.missing = set()
    await service.once()
    assert service.state == (GateState.RUNNING, "")
    changes = [each for each in listener.events if isinstance(each, GateChanged)]
    assert [each.is_failing for each in changes] == [True, False]
    assert len(broker.links) == 3
    await service.close()


async def test_a_fault_of_the_store_keeps_the_link(
    clock: ManualClock, broker: ScriptedBroker, listener: RecordingListener
) -> None:
    class Failing(MemoryEngine):
        down = False

        async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
            if self.down:
                raise EngineUnavailable("the store is down")
            return await super().enqueue(jobs)

    store = Failing(clock=clock)
    await store.open()
    store.down = True
    broker.put("s", Message(message_id="m1"))
    service = GateService(store, INLET, lambda: broker.open_link("x:"), listener)
    for _ in range(3):
        with pytest.raises(EngineUnavailable):
            await service.once()
    assert service.state == (GateState.FAILING, "the store is down")
    store.down = False
    await service.once()
    assert (len(broker.links), broker.left) == (1, [])
    assert service.counts == {"received": 1, "enqueued": 1}
    await service.close()


async def test_a_fault_of_a_driver_opens_the_link_again(
    store: Engine, broker: ScriptedBroker, listener: RecordingListener
) -> None:
    faults = [KeyError("odd")]

    def fail(call: str) -> None:
        if call == "receive" and faults:
            raise faults.pop()

    broker.fail = fail
    service = GateService(store, INLET, lambda: broker.open_link("x:"), listener)
    with pytest.raises(KeyError):
        await service.once()
    await service.once()
    assert [link.is_open for link in broker.links] == [False, True]
    await service.close()


async def test_a_stop_finishes_the_step_and_returns_the_rest(
    store: Engine, broker: ScriptedBroker, listener: RecordingListener
) -> None:
    await Gates(store).add(INLET)
    await Gates(store).add(OUTLET)
    gates = GateRunner(store, URLS, open_link=broker.open_link, tell=listener)
    stop = asyncio.Event()
    task = asyncio.create_task(gates.run(stop))
    await settled()
    stop.set()
    await task
    assert not any(link.is_open for link in broker.links)
    assert [record.key async for record in scan(store, GATE_RUNS.name)] == []
    assert not [event for event in listener.events if isinstance(event, Troubled)]


async def test_a_step_that_does_not_end_is_cancelled(
    store: Engine, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "STOP_S", 0.01)
    await Gates(store).add(OUTLET)
    await store.enqueue([NewJob(id="j1", task="t")])
    broker.gate = asyncio.Event()
    gates = GateRunner(store, URLS, open_link=broker.open_link)
    await gates.once()
    await settled()
    await gates._stop(["out"])
    job = await store.get("j1")
    assert job is not None
    assert (job.state, job.attempt) == ("waiting", 0)


async def test_a_process_that_was_killed_is_not_counted(
    store: Engine, gates: GateRunner, clock: ManualClock
) -> None:
    await Gates(store).add(INLET)
    killed = Record(
        kind=GATE_RUNS.name,
        key="in/gone",
        value=b'{"gate":"in","queue":"default","state":"failing","text":"x"}',
    )
    await store.save([killed])
    assert (await view(store)).state is GateState.FAILING
    clock.advance(31_000)
    assert (await view(store)).state is GateState.UNSERVED
    clock.advance(60_000)
    await gates.once()
    keys = [record.key async for record in scan(store, GATE_RUNS.name)]
    assert keys != []
    assert "in/gone" not in keys


async def test_an_unreadable_gate_does_not_stop_the_others(
    store: Engine, gates: GateRunner, broker: ScriptedBroker
) -> None:
    await store.save([Record(kind="gate", key="bad", value=b"?")])
    await Gates(store).add(INLET)
    broker.put("s", Message(message_id="m1"))
    await gates.once()
    await settled()
    assert await jobs(store) == {"gate:in:m1"}


async def test_a_full_queue_is_shown_as_held(
    store: Engine, gates: GateRunner, broker: ScriptedBroker
) -> None:
    await store.declare(Queue(name="default", accepting=False))
    await Gates(store).add(INLET)
    await gates.once()
    await settled()
    await gates.once()
    found = await view(store)
    assert (found.state, found.text) == (
        GateState.HELD,
        "queue default does not accept new jobs",
    )
