"""Gates over REST: operations, permissions and audit."""

from typing import Any

import pytest

from holdfast.core.model import Queue
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import Forbidden
from holdfast.ops.gates import GATE_RUNS, Gate, GateRun, Gates, GateState
from holdfast.server.access.authorized_engine import AuthorizedEngine
from tests.server.rest_client import RestClient
from tests.server.samples import caller

ORDERS = "/v1/gates/orders"
INLET = {
    "direction": "inlet",
    "broker": "main",
    "queue": "default",
    "source": "in",
    "task": "{header.kind|send}",
}


async def put(rest: RestClient, **more: Any) -> Any:
    return await rest.ask("PUT", ORDERS, {**INLET, **more})


async def test_a_gate_is_added_replaced_and_shown(rest: RestClient) -> None:
    added = await put(rest)
    assert (added["name"], added["direction"], added["source"]) == ("orders", "inlet", "in")
    assert (added["state"], added["processes"], added["counts"]) == ("unserved", 0, {})
    assert "HOLDFAST_BROKER_MAIN" in added["text"]
    assert any("at least one job" in note for note in added["notes"])
    assert await rest.get(ORDERS) == added
    assert await rest.get("/v1/gates") == {"gates": [added]}
    again = await put(rest, source="other", prefetch=7)
    assert (again["source"], again["prefetch"]) == ("other", 7)


async def test_pause_resume_and_remove(rest: RestClient) -> None:
    await put(rest)
    assert (await rest.post(f"{ORDERS}/pause"))["state"] == "paused"
    assert (await put(rest, source="x"))["state"] == "paused"
    assert (await rest.post(f"{ORDERS}/resume"))["state"] == "unserved"
    assert (await rest.ask("DELETE", ORDERS))["name"] == "orders"
    for method, path in (
        ("GET", ORDERS),
        ("DELETE", ORDERS),
        ("POST", f"{ORDERS}/pause"),
        ("POST", f"{ORDERS}/resume"),
    ):
        assert await rest.refused(method, path) == (404, "not_found")


async def test_the_state_is_that_of_the_processes(rest: RestClient) -> None:
    await put(rest)
    for key, state, text in (
        ("orders/a", GateState.FAILING, "connection refused"),
        ("orders/b", GateState.RUNNING, ""),
    ):
        run = GateRun(
            gate="orders", queue="default", state=state, text=text, counts={"received": 2}
        )
        await GATE_RUNS.create(rest.store, key, run)
    found = await rest.get(ORDERS)
    assert (found["state"], found["text"], found["processes"]) == (
        "running",
        "connection refused",
        2,
    )
    assert found["counts"] == {"received": 4}
    assert (await rest.get("/v1/status"))["gates"] == [found]
    findings = (await rest.get("/v1/doctor"))["findings"]
    assert [each["level"] for each in findings if each["name"] == "gate"] == ["warn", "ok"]


@pytest.mark.parametrize(
    ("more", "status", "code"),
    [
        ({"broker": "amqp://user:secret@host"}, 400, "invalid_request"),
        ({"queue": "missing"}, 404, "unknown_queue"),
        ({"task": "{body}"}, 422, "config"),
        ({"task": "{"}, 422, "config"),
        ({"source": ""}, 422, "config"),
        ({"exchange": "x"}, 422, "config"),
        ({"prefetch": 0}, 400, "invalid_request"),
        ({"url": "amqp://host"}, 400, "invalid_request"),
    ],
)
async def test_a_wrong_gate_is_refused(
    rest: RestClient, more: dict[str, Any], status: int, code: str
) -> None:
    answer = await rest.client.request("PUT", ORDERS, json={**INLET, **more})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert "secret" not in answer.text
    assert await rest.get("/v1/gates") == {"gates": []}


async def test_what_operators_do_is_in_the_audit_log(rest: RestClient) -> None:
    await put(rest)
    await rest.post(f"{ORDERS}/pause")
    await rest.ask("DELETE", ORDERS)
    acts = (await rest.get("/v1/audit"))["acts"]
    assert [(act["what"], act["on"]) for act in acts if act["what"].startswith("gate")] == [
        ("gate.remove", "orders"),
        ("gate.save", "orders"),
        ("gate.save", "orders"),
    ]


def gate(**more: Any) -> Gate:
    return Gate(**{"name": "orders", **INLET, **more})


@pytest.fixture
async def store() -> MemoryEngine:
    engine = MemoryEngine()
    await engine.open()
    await engine.declare(Queue(name="mail.in"))
    return engine


@pytest.mark.parametrize("task", ["command", "webhook"])
async def test_no_gate_runs_commands_without_the_scope(store: MemoryEngine, task: str) -> None:
    mine = Gates(AuthorizedEngine(store, caller("operate")))
    trusted = Gates(AuthorizedEngine(store, caller("operate", "run-commands")))
    with pytest.raises(Forbidden, match="run-commands"):
        await mine.add(gate(task=task))
    await trusted.add(gate(task=task))
    with pytest.raises(Forbidden, match="run-commands"):
        await mine.put(gate(task=task, source="other"))
    await mine.pause("orders")
    await mine.pause("orders", paused=False)
    assert await mine.remove("orders")


async def test_a_prefix_sees_its_gates_and_adds_none(store: MemoryEngine) -> None:
    await Gates(store).add(gate(queue="mail.in"))
    await Gates(store).add(gate(name="other"))
    run = GateRun(gate="orders", queue="mail.in", state=GateState.RUNNING)
    await GATE_RUNS.create(store, "orders/p", run)
    mine = Gates(AuthorizedEngine(store, caller("operate", prefix="mail.")))
    [view] = await mine.views()
    assert (view.name, view.state) == ("orders", GateState.RUNNING)
    await mine.pause("orders")
    with pytest.raises(Forbidden, match="without a prefix"):
        await mine.add(gate(name="new", queue="mail.in"))
    with pytest.raises(Forbidden, match="without a prefix"):
        await mine.put(gate(queue="mail.in", source="secret"))
    assert not await mine.remove("other")
    assert await mine.remove("orders")


async def test_gates_need_the_scope_operate(store: MemoryEngine) -> None:
    await Gates(store).add(gate())
    worker = Gates(AuthorizedEngine(store, caller("consume", "produce")))
    assert [view.name for view in await worker.views()] == ["orders"]
    with pytest.raises(Forbidden):
        await worker.pause("orders")
    with pytest.raises(Forbidden):
        await Gates(AuthorizedEngine(store, caller("produce"))).all()
