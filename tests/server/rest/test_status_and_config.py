"""Distributions, settings, status and doctor over REST."""

import asyncio
import shlex

import pytest

from holdfast.cli import run
from holdfast.config import SETTINGS
from holdfast.core.model import LeaseRequest, Queue, Record
from holdfast.engines.memory import MemoryEngine
from holdfast.server.settings import ServerSettings
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import Distributor
from tests.server.direct_server import direct_server
from tests.server.rest.test_workers import come
from tests.server.rest_client import RestClient
from tests.server.samples import job
from tests.upkeep.fake_broker import FakeBroker, FakeBrokered

FEEDING = "/v1/distributions"
CONFIG = "/v1/config"


async def test_a_distribution_is_stored_applied_and_removed(rest: RestClient) -> None:
    for name in ("mail", "mail.a", "mail.b"):
        await rest.post("/v1/queues", {"name": name}, status=201)
    body = {"source": "mail.*", "depth": 10, "weights": {"mail.a": 2}}
    stored = await rest.ask("PUT", f"{FEEDING}/mail", body)
    assert stored == {"source": "mail.*", "target": "mail", "depth": 10, "weights": {"mail.a": 2}}
    assert await rest.get(FEEDING) == {"distributions": [stored]}
    await rest.enqueue({"id": "a"}, queue="mail.a")
    await Distributor(rest.store).once()
    assert (await rest.job("a")).queue == "mail"
    assert await rest.ask("DELETE", f"{FEEDING}/mail") == {"queue": "mail", "stored": False}
    assert await rest.get(FEEDING) == {"distributions": []}
    assert await rest.refused("DELETE", f"{FEEDING}/mail") == (404, "not_found")


async def test_a_distribution_needs_a_queue_and_a_pattern(rest: RestClient) -> None:
    body = {"source": "mail.*"}
    assert await rest.refused("PUT", f"{FEEDING}/none", body) == (404, "not_found")
    wrong = await rest.refused("PUT", f"{FEEDING}/default", {"source": "a b"})
    assert wrong == (400, "invalid_request")


async def test_a_setting_is_stored_and_unset(
    rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting in SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)
    listed = (await rest.get(CONFIG))["settings"]
    assert [each["name"] for each in listed] == list(SETTINGS)
    assert (await rest.get(f"{CONFIG}/max-retries"))["source"] == "default"
    stored = await rest.ask("PUT", f"{CONFIG}/max-retries", {"value": "7"})
    assert (stored["value"], stored["source"]) == ("7", "stored")
    [id_] = await rest.enqueue({})
    assert (await rest.get(f"/v1/jobs/{id_}"))["max_attempts"] == 8
    forgotten = await rest.ask("POST", f"{CONFIG}/max-retries/unset")
    assert (forgotten["value"], forgotten["source"]) == ("3", "default")
    assert await rest.ask("POST", f"{CONFIG}/max-retries/unset") == forgotten


async def test_unknown_settings_are_refused(rest: RestClient) -> None:
    assert await rest.refused("GET", f"{CONFIG}/colour") == (404, "not_found")
    assert await rest.refused("PUT", f"{CONFIG}/colour", {"value": "1"}) == (404, "not_found")
    wrong = await rest.refused("PUT", f"{CONFIG}/max-retries", {"value": "many"})
    assert wrong == (422, "config")
    # It lets workers run texts by the shell: no less than running commands.
    shell = await rest.refused("PUT", f"{CONFIG}/worker-shell", {"value": "yes"})
    assert shell == (403, "forbidden")


async def test_status_shows_everything(rest: RestClient) -> None:
    await come(rest, "w")
    await rest.enqueue({"id": "a"})
    status = await rest.get("/v1/status")
    [queue] = status["queues"]
    assert (queue["name"], queue["ready"]) == ("default", 1)
    assert [each["name"] for each in status["workers"]] == ["w"]
    assert (status["breakers"], status["redrives"]) == ([], [])


async def test_the_doctor_shows_remedies(rest: RestClient) -> None:
    await rest.enqueue({"id": "a"})
    told = await rest.get("/v1/doctor")
    assert told["ok"] is True
    worker = next(each for each in told["findings"] if each["name"] == "worker")
    assert (worker["level"], worker["command"]) == ("warn", "worker start")


async def test_a_hostile_record_leaves_the_server_well_and_is_removed(
    rest: RestClient, capfd: pytest.CaptureFixture[str]
) -> None:
    """A worker that started in the far future made these answers fail."""
    value = b'{"name":"bad","id":"1","host":"h","pid":1,"started_at":1000000000000000000}'
    await rest.store.save(
        [
            Record(kind="worker", key="bad", value=value),
            Record(kind="task-limit", key="q/a b", value=b"{"),
            Record(kind="token", key="bad", value=b"{"),
        ]
    )
    await come(rest, "good")
    assert [each["name"] for each in (await rest.get("/v1/workers"))["workers"]] == ["good"]
    assert [each["name"] for each in (await rest.get("/v1/status"))["workers"]] == ["good"]
    findings = (await rest.get("/v1/doctor"))["findings"]
    commands = [each["command"] for each in findings if each["name"] == "record"]
    assert commands == ["record remove task-limit 'q/a b'", "record remove worker bad"]
    url = str(rest.client.base_url)
    line = [*shlex.split(commands[0]), "--url", url]
    assert await asyncio.to_thread(run, line) == 0, "the command line asks the server to do it"
    assert capfd.readouterr().out == "removed the task-limit record q/a b\n"
    await rest.ask("DELETE", "/v1/records/worker/bad", status=204)
    assert await rest.refused("DELETE", "/v1/records/worker/bad") == (404, "not_found")
    assert await rest.refused("DELETE", "/v1/records/worker/good") == (422, "usage")
    assert await rest.refused("DELETE", "/v1/records/nothing/good") == (404, "unknown_kind")
    await rest.ask("DELETE", "/v1/records/token/bad", status=204)


async def test_the_doctor_shows_a_prefix_only_its_own() -> None:
    async with direct_server(ServerSettings(auth=True)) as at:
        engine = at.engine()
        for queue in (Queue(name="other"), Queue(name="mail.in", dead_queue="other")):
            await engine.declare(queue)
        await engine.enqueue([job("own", "mail.in"), job("strange", "other")])
        strange = await engine.lease(LeaseRequest(queues=("other",), worker="strange", lease_ms=10))
        assert [lease.id for lease in strange] == ["strange"]
        token = await at.token("operate", prefix="mail.")
        reply = await at.ask("GET", "/v1/doctor", token=token)
        assert reply.status == 200, reply.body
        told = {(each["name"], each["level"], each["text"]) for each in reply.json["findings"]}
        assert ("upkeep", "ok", "no schedule, redrive or act is late") in told
        assert ("store", "ok", "memory opens, and its schema matches") in told
        assert [text for name, _, text in told if name == "queue"] == [
            "1 job is ready in queue mail.in, and no worker serves it"
        ]
        assert b"strange" not in reply.body
        assert b"other" not in reply.body
        whole = await at.ask("GET", "/v1/doctor", token=await at.token("operate"))
        assert "nothing is late" in {each["text"] for each in whole.json["findings"]}


async def test_the_broker_is_shown_to_callers_without_a_prefix() -> None:
    broker = FakeBroker(ManualClock())
    broker.error = "amqp://u:hunter2@inner is closed"
    store = FakeBrokered(MemoryEngine(), broker)
    async with direct_server(ServerSettings(auth=True), default=store) as at:
        await store.declare(Queue(name="worker.w"))
        await store.enqueue([job("j", "worker.w")])
        for prefix in ("", "worker."):
            token = await at.token("operate", "consume", prefix=prefix)
            told = [
                (await at.ask("GET", path, token=token)).body
                for path in ("/v1/doctor", "/v1/jobs/j/explain")
            ]
            assert [b"amqp://inner is closed" in each for each in told] == [not prefix] * 2
            assert b"hunter2" not in b"".join(told)
