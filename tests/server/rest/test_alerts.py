"""Alerts over REST, in `status`, and from a server process."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.app.application import Holdfast
from holdfast.core.model import Queue, Record
from holdfast.engines.base import Saved
from holdfast.engines.extras import PartitionView
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import StorageFull
from holdfast.ops.alerts import read_alerts
from holdfast.process import wall_ms
from holdfast.server.access.caller import Caller
from holdfast.server.live.metrics import snapshot_reader
from holdfast.testing.clock import ManualClock
from tests.alerts.alert_steps import AlertServer, enqueue_jobs, set_thresholds
from tests.cli.program import run_program
from tests.server.direct_server import DirectReply, direct_server
from tests.server.rest_client import RestClient
from tests.server.server_process import server_process
from tests.worker.live_workers import until
from tests.worker.webhook_receiver import Receiver, receiving
from tests.worker.webhooks.test_webhook import secrets_file

JOBS = "/v1/queues/default/jobs"
ALERTS = "/v1/alerts"


async def test_raised_and_ended_alerts_are_listed(rest: RestClient) -> None:
    assert await rest.get(ALERTS) == {"alerts": []}
    guard = AlertServer(rest.store, rest.clock)
    await rest.post("/v1/queues", {"name": "mail"}, status=201)
    await enqueue_jobs(rest.store, 101)
    await guard.look()
    rest.clock.advance(1_000)
    await enqueue_jobs(rest.store, 101, "mail")
    await rest.ask("PUT", "/v1/config/alert-depth", {"value": "200,mail:50"})
    await guard.look()
    mail, default = (await rest.get(ALERTS))["alerts"]
    assert mail == {
        "rule": "depth",
        "severity": "critical",
        "state": "raised",
        "about": "mail",
        "queue": "mail",
        "value": 101,
        "threshold": 50,
        "unit": "jobs",
        "text": "101 jobs are ready in queue mail",
        "raised_at": "2027-01-15T08:00:01Z",
        "ended_at": None,
        "seen_ago": 0.0,
        "stale": False,
    }
    assert (default["queue"], default["state"]) == ("default", "ended")
    assert default["ended_at"] == "2027-01-15T08:00:01Z"
    queries: tuple[tuple[dict[str, Any], list[Any]], ...] = (
        ({"state": "raised"}, [mail]),
        ({"state": "ended"}, [default]),
        ({"queue": "mail"}, [mail]),
        ({"severity": "warn"}, []),
    )
    for query, expected in queries:
        assert (await rest.get(ALERTS, **query))["alerts"] == expected
    assert (await rest.get("/v1/status"))["alerts"] == [mail]
    rest.clock.advance(90_001)
    [again] = (await rest.get("/v1/status"))["alerts"]
    assert (again["seen_ago"], again["stale"]) == (90.001, True), "nobody looks any more"
    assert await rest.refused("GET", ALERTS, state="odd") == (400, "invalid_request")


async def test_raised_alerts_are_counted(rest: RestClient) -> None:
    await enqueue_jobs(rest.store, 101)
    await AlertServer(rest.store, rest.clock).look()
    text = (await rest.client.get("/metrics")).text
    assert 'holdfast_alerts{rule="depth",severity="critical"} 1.0' in text
    assert 'holdfast_alerts{rule="dead_letters",severity="warn"} 0.0' in text
    async with Holdfast(engine=MemoryEngine()) as app:
        await enqueue_jobs(app.engine, 101)
        await AlertServer(app.engine, ManualClock(), TwoOfThree()).look()
        for prefix, expected in (
            ("", {"depth", "partition_out"}),
            ("def", {"depth"}),
            ("x", set()),
        ):
            sight = await snapshot_reader(app).for_caller(Caller(name="t", prefix=prefix))
            assert {alert.rule for alert in sight.alerts} == expected


async def test_ages_are_in_seconds(rest: RestClient) -> None:
    await enqueue_jobs(rest.store, 1)
    rest.clock.advance(400_000)
    await AlertServer(rest.store, rest.clock).look()
    critical, warn = (await rest.get(ALERTS))["alerts"]
    assert (critical["rule"], critical["threshold"]) == ("no_worker", 30.0)
    assert (warn["rule"], warn["value"], warn["unit"]) == ("oldest_age", 400.0, "seconds")


class TwoOfThree:
    """A store whose second partition is shut out."""

    def partitions(self) -> list[PartitionView]:
        return [
            PartitionView(name="p1", waiting=0),
            PartitionView(name="p2", waiting=0, out_ms=5, text="it is gone"),
        ]


def seen(reply: DirectReply) -> list[tuple[str, str]]:
    assert reply.status == 200, reply.body
    return sorted((each["rule"], each["about"]) for each in reply.json["alerts"])


async def test_callers_see_only_their_alerts() -> None:
    clock = ManualClock()
    async with direct_server() as here:
        other = await here.token("operate", namespace="other")
        prefixed = await here.token("operate", prefix="mail-")
        whole = await here.token("operate")
        assert seen(await here.ask("GET", ALERTS, token=other)) == []
        for name, app in here.apps.items():
            await app.engine.declare(Queue(name="mail-out"))
            await set_thresholds(app.engine, depth="0", no_worker="off")
            await enqueue_jobs(app.engine, 1)
            if name == "default":
                await enqueue_jobs(app.engine, 1, "mail-out")
            await AlertServer(app.engine, clock, TwoOfThree() if name == "default" else None).look()
        mail, default = ("depth", "mail-out"), ("depth", "default")
        assert seen(await here.ask("GET", ALERTS, token=whole)) == [
            default,
            mail,
            ("partition_out", "p2"),
        ]
        assert seen(await here.ask("GET", ALERTS, token=prefixed)) == [mail]
        assert seen(await here.ask("GET", ALERTS, token=other)) == [default]
        for path in (ALERTS, "/v1/status"):
            producer = await here.token("produce", "consume")
            assert (await here.ask("GET", path, token=producer)).status == 403


async def test_alerts_that_cannot_be_stored_are_shown() -> None:
    async with direct_server() as here:
        token, prefixed = await here.token("operate"), await here.token("operate", prefix="mail-")
        engine = Unwilling()
        await engine.open()
        await enqueue_jobs(engine, 101)
        guard = AlertServer(engine, ManualClock(), TwoOfThree())
        await guard.look()
        here.server.alerters["default"] = guard.alerter
        shown = [("depth", "default"), ("partition_out", "p2")]
        assert seen(await here.ask("GET", ALERTS, token=token)) == shown
        assert seen(await here.ask("GET", ALERTS, token=prefixed)) == []


class Unwilling(MemoryEngine):
    async def save(self, records: Sequence[Record]) -> list[Saved]:
        raise StorageFull("there is no room")


async def test_status_shows_alerts_locally_and_remotely(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Holdfast(url) as app:
        await only_depth(app)
        await enqueue_jobs(app.engine, 101)
        await AlertServer(app.engine, ManualClock(wall_ms()), app.home.store).look()

    def look() -> None:
        told = run_program(tmp_path, "status", "--url", url).out
        assert "critical  depth  101 jobs are ready in queue default  since 2" in told
        [alert] = run_program(tmp_path, "status", "--json", "--url", url).json["alerts"]
        assert (alert["rule"], alert["state"]) == ("depth", "raised")
        with server_process(tmp_path) as process:
            found = run_program(tmp_path, "status", "--json", "--url", process.url).json["alerts"]
        assert [each["raised_at"] for each in found] == [alert["raised_at"]]

    await asyncio.to_thread(look)


async def test_alerts_reach_a_webhook_across_kills_and_restarts(tmp_path: Path) -> None:
    """It is raised by one process, which is killed, and ended by another."""
    flags = ["--alert-webhook-secrets", secrets_file(tmp_path)]
    flags += ["--alert-webhook-allow", "127.0.0.1/32"]
    jobs = {"jobs": [{"task": "t", "id": f"job-{number}"} for number in range(150)]}
    async with receiving() as receiver:
        flags += ["--alert-webhook", f"http://127.0.0.1:{receiver.port}/hidden"]

        async def told(count: int) -> list[str]:
            await until(lambda: len(receiver.got) >= count, "what is told")
            return [f"{each['event']} {each['rule']}" for each in bodies(receiver)]

        async with Holdfast(f"sqlite:///{tmp_path}/jobs.db") as app:
            await only_depth(app)
            with server_process(tmp_path, *flags) as process:
                assert (await asyncio.to_thread(process.post, JOBS, jobs))[0] == 201
                assert await told(1) == ["alert.raised depth"]
                # The next server repeats a notice whose delivery is not stored.
                await until(lambda: has_no_pending_notice(app), "the delivery to be stored")
                process.popen.kill()
        with server_process(tmp_path, *flags) as process:
            amend = {"filter": {"queue": "default"}, "act": "cancel"}
            status, answer = await asyncio.to_thread(process.post, "/v1/jobs/amend", amend)
            assert status == 200, answer
            assert await told(2) == ["alert.raised depth", "alert.ended depth"]
            alerts = (await asyncio.to_thread(process.get, ALERTS))[1]["alerts"]
            assert [(each["rule"], each["state"]) for each in alerts] == [("depth", "ended")]
            process.popen.terminate()
            error = (await asyncio.to_thread(process.popen.communicate))[1]
    assert "alert.ended" in error
    assert "hidden" not in error


async def only_depth(app: Holdfast) -> None:
    """Turn off the rules about time and disk: how long a test takes must raise no alert."""
    await set_thresholds(app.engine, no_worker="off", age="off", disk="off")


async def has_no_pending_notice(app: Holdfast) -> bool:
    return all(alert.pending is None for alert, _ in await read_alerts(app.engine))


def bodies(receiver: Receiver) -> list[Any]:
    return [json.loads(got.body) for got in receiver.got]


def test_an_invalid_webhook_is_refused_at_the_start(tmp_path: Path) -> None:
    ran = run_program(tmp_path, "serve", "--port", "0", "--alert-webhook", "https://x.test/hidden")
    assert (ran.code, "--alert-webhook-secrets" in ran.err) == (2, True)
    ran = run_program(tmp_path, "serve", "--port", "0", "--alert-webhook-ca", "x")
    assert (ran.code, "--alert-webhook is missing" in ran.err) == (2, True)
    assert "hidden" not in ran.err
