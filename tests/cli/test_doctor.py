"""`doctor` finds each problem and prints its remedy."""

import asyncio
import shlex
from pathlib import Path
from typing import Any

import pytest

from holdfast.app.application import Holdfast
from holdfast.core.limits import Rate
from holdfast.core.model import JobFilter, NewJob, Queue, Record
from holdfast.engines.base import Engine
from holdfast.engines.broker import BrokerStatus
from holdfast.engines.extras import Examination
from holdfast.engines.memory import MemoryEngine
from holdfast.ops import broker_status, doctor
from holdfast.ops.jobs.acts import ActPlan, Acts
from holdfast.ops.jobs.explain import explain_job
from holdfast.ops.redrives import RedrivePlan
from holdfast.ops.ticks import Schedule
from holdfast.process import wall_ms
from holdfast.testing.clock import ManualClock
from tests.cli import seed
from tests.cli.program import Cli, run_program
from tests.upkeep.fake_broker import FakeBroker, FakeBrokered


def levels(findings: list[dict[str, Any]]) -> dict[str, set[str]]:
    answer: dict[str, set[str]] = {}
    for finding in findings:
        answer.setdefault(finding["name"], set()).add(finding["level"])
    return answer


def test_a_healthy_store_has_no_findings(cli: Cli) -> None:
    seed.enqueue()
    seed.worker("w")
    answer = cli("doctor", "--deep", "--json").json
    assert answer["ok"] is True
    names = ["python", "store", "disk", "integrity", "clock", "upkeep", "record", "worker", "queue"]
    assert levels(answer["findings"]) == {name: {"ok"} for name in names}
    (integrity,) = [each for each in answer["findings"] if each["name"] == "integrity"]
    assert integrity["text"] == (
        "no damage found; payloads have no checksums, so their bytes are not verified"
    )
    text = cli("doctor").out
    assert "SQLite 3." in text
    assert "integrity" not in text


def test_an_unreadable_record_is_named_and_removed(cli: Cli) -> None:
    bad = [
        Record(kind="schedule", key="bad", value=b'{"name":"bad"}'),
        Record(kind="task-limit", key="q/it's bad", value=b"{"),
    ]
    seed.with_app(lambda app: app.engine.save(bad))
    found = [each for each in cli("doctor", "--json").json["findings"] if each["name"] == "record"]
    assert [each["level"] for each in found] == ["warn", "warn"]
    assert "the stored schedule 'bad' cannot be read and has no effect: " in found[0]["text"]
    assert "missing required field `job`" in found[0]["text"]
    for each in found:
        ran = cli(*shlex.split(each["command"]))
        assert ran.code == 0, ran
    assert ran.out == "removed the task-limit record q/it's bad\n"
    found = [each for each in cli("doctor", "--json").json["findings"] if each["name"] == "record"]
    assert [each["text"] for each in found] == ["every stored record can be read"]
    acts = [(each["what"], each["on"]) for each in cli("audit", "--json").json]
    assert ("record.remove", "schedule bad") in acts
    again = cli("record", "remove", "schedule", "bad")
    assert (again.code, again.out) == (3, "")
    assert 'there is no schedule record "bad"' in again.err


def test_warnings_have_a_remedy_and_exit_with_0(cli: Cli) -> None:
    cli("queue", "create", "mail", "--max-depth", "1")
    cli("queue", "create", "old", "--no-accepting")
    seed.enqueue(queue="mail")
    cli("queue", "pause", "mail")
    seed.worker("w", blocked="it has room and leases nothing")
    ran = cli("doctor")
    assert ran.code == 0
    for part in (
        "worker w is unhealthy: it has room and leases nothing",
        "no worker serves it",
        "start a worker for it: holdfast worker start --queues mail",
        "which is paused",
        "queue old accepts no new job",
        "queue mail is full: it holds 1 waiting job",
    ):
        assert part in ran.out
    answer = cli("doctor", "--json").json
    assert all(finding["remedy"] for finding in answer["findings"] if finding["level"] != "ok")


def test_a_task_unknown_to_all_workers_is_found(cli: Cli) -> None:
    seed.worker("w", tasks=("known",))
    seed.enqueue("a", task="known")
    seed.enqueue("b", task="unknown")
    findings = cli("doctor", "--json").json["findings"]
    [found] = [finding for finding in findings if finding["level"] == "warn"]
    assert found["text"].startswith("1 job of task unknown waits in queue default, and none")
    assert found["remedy"]


def test_a_store_that_does_not_open_is_a_finding(cli: Cli, tmp_path: Path) -> None:
    seed.begin()
    (tmp_path / "holdfast.db").write_bytes(b"no database" * 1000)
    ran = cli("doctor")
    assert ran.code == 1
    assert ran.out.startswith("fail  store")
    assert (ran.out.count("\n"), ran.err) == (1, "")


def test_deep_finds_damage(tmp_path: Path) -> None:
    assert run_program(tmp_path, "enqueue", "--task", "t", "--id", "the-job-to-find").code == 0
    assert run_program(tmp_path, "doctor", "--deep").code == 0
    file = tmp_path / "holdfast.db"
    # It is in the table and in an index; only one of them is changed.
    assert file.read_bytes().count(b"the-job-to-find") == 2
    file.write_bytes(file.read_bytes().replace(b"the-job-to-find", b"the-job-to-hide", 1))
    assert run_program(tmp_path, "doctor").code == 0
    ran = run_program(tmp_path, "doctor", "--deep")
    assert ran.code == 1, ran
    assert "fail  integrity" in ran.out
    assert "restore a backup" in ran.out


async def found(engine: Engine, name: str) -> list[doctor.Finding]:
    return [finding for finding in await doctor.check_store(engine) if finding.name == name]


async def test_the_broker_is_checked() -> None:
    broker = FakeBroker(ManualClock(wall_ms()))
    engine = FakeBrokered(MemoryEngine(), broker)
    await engine.open()
    [well] = await found(engine, "broker")
    assert (well.level, well.text) == (
        "ok",
        "the broker, version 1.0, answers and has 0 dead messages",
    )
    for _ in range(doctor.DEAD_MESSAGES_MAX + 1):
        broker.put_dead()
    broker.warnings = ("RabbitMQ at host:5672: queue worker.a is locked: delete it",)
    many, warned = await found(engine, "broker")
    assert (many.level, many.command) == ("warn", "config get dead-letter-handler")
    assert (warned.level, warned.text, warned.remedy) == (
        "warn",
        "RabbitMQ at host:5672: queue worker.a is locked",
        "delete it",
    )
    broker.error = "amqp://guest:hunter2@broker/v refused the connection"
    [down] = await found(engine, "broker")
    assert (down.level, bool(down.remedy)) == ("warn", True)
    assert down.text == (
        "the broker is down: amqp://broker/v refused the connection;"
        " until it is back, jobs are found by polling"
    )


async def test_a_broker_that_does_not_answer_does_not_stop_the_doctor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Silent(FakeBroker):
        async def status(self) -> BrokerStatus:
            await asyncio.Event().wait()
            raise AssertionError

    monkeypatch.setattr(broker_status, "_STATUS_S_MAX", 0.01)
    engine = FakeBrokered(MemoryEngine(), Silent(ManualClock(wall_ms())))
    await engine.open()
    [finding] = await found(engine, "broker")
    assert "no answer within 0.01 s" in finding.text


async def test_explain_names_the_broker_that_is_down() -> None:
    broker = FakeBroker(ManualClock(wall_ms()))
    broker.error = "amqp://guest:hunter2@broker is closed"
    engine = FakeBrokered(MemoryEngine(), broker)
    async with Holdfast(engine=engine) as app:
        await app.declare("worker.w")
        await app.enqueue("t", id="a", to="w")
        job = await engine.get("a")
        assert job is not None
        causes = {each.code: each.text for each in await explain_job(engine, job, wall_ms())}
        assert "(amqp://broker is closed)" in causes["broker_down"]
        broker.error = ""
        codes = [each.code for each in await explain_job(engine, job, wall_ms())]
        assert codes == ["addressee_absent"]


async def test_missing_upkeep_is_found() -> None:
    clock = ManualClock(wall_ms())
    engine = MemoryEngine(clock=clock)
    async with Holdfast(engine=engine) as app:
        await app.enqueue("t", id="a")
        await app.lease(lease="1s", worker="w")
        await app.enqueue("t", id="b", expires="1s")
        clock.advance(1_000 + doctor.LATE_MS_MAX)
        assert [each.level for each in await found(engine, "upkeep")] == ["ok"], "only just late"
        clock.advance(1)
        lapsed, expired = await found(engine, "upkeep")
        assert "the lease of job a has been overdue" in lapsed.text
        assert "job b expired" in expired.text
        assert {each.level for each in (lapsed, expired)} == {"fail"}
        assert lapsed.command == "up"


async def test_a_redrive_without_progress_is_found() -> None:
    clock = ManualClock(wall_ms())
    engine = MemoryEngine(clock=clock)
    async with Holdfast(engine=engine) as app:
        slow = RedrivePlan(wanted=JobFilter(), rate=Rate(count=1, per_ms=3_600_000))
        for plan in (RedrivePlan(wanted=JobFilter()), slow):
            await app.redrives.start(plan)
        clock.advance(doctor.LATE_MS_MAX)
        assert [each.level for each in await found(engine, "upkeep")] == ["ok"]
        clock.advance(1)
        assert {each.level for each in await found(engine, "upkeep")} == {"fail"}
        for view in await app.redrives.going_on():
            await app.redrives.cancel(view.redrive.id, "ada")
        assert [each.level for each in await found(engine, "upkeep")] == ["ok"]


async def test_an_act_without_progress_is_found() -> None:
    clock = ManualClock(wall_ms())
    engine = MemoryEngine(clock=clock)
    async with Holdfast(engine=engine) as app:
        await app.enqueue("t")
        acts = Acts(engine, clock.wall_ms)
        act = await acts.count(ActPlan(act="cancel"), "ann")
        clock.advance(doctor.LATE_MS_MAX + 1)
        assert [each.level for each in await found(engine, "upkeep")] == ["ok"]
        await acts.run(act.id, "ann")
        clock.advance(doctor.LATE_MS_MAX + 1)
        [late] = await found(engine, "upkeep")
        assert (late.level, late.text.split(" made ")[0]) == ("fail", f"act {act.id}")


async def test_a_late_schedule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = MemoryEngine()
    async with Holdfast(engine=engine) as app:
        job = NewJob(id="j", task="t")
        await app.schedules.add(Schedule(name="s", job=job, every_ms=1_000))
        await app.schedules.add(Schedule(name="off", job=job, every_ms=1_000))
        await app.schedules.pause("off")
        assert [each.level for each in await found(engine, "upkeep")] == ["ok"]
        monkeypatch.setattr(doctor, "wall_ms", lambda: wall_ms() + 200_000)
        [late] = await found(engine, "upkeep")
        assert "schedule s did not tick" in late.text


@pytest.mark.parametrize("apart_ms", [60_000, -60_000])
async def test_clock_skew_is_found(apart_ms: int) -> None:
    engine = MemoryEngine(clock=ManualClock(wall_ms() + apart_ms))
    async with Holdfast(engine=engine):
        [clock] = await found(engine, "clock")
        assert clock.level == "warn"
        assert clock.text.endswith(" s apart")


async def test_a_missing_dead_queue_is_found() -> None:
    engine = MemoryEngine()
    async with Holdfast(engine=engine):
        await engine.declare(Queue(name="grave"))
        await engine.declare(Queue(name="mail", dead_queue="grave"))
        await engine.drop("grave")
        [missing] = await found(engine, "queue")
        assert missing.text == "the dead queue grave of queue mail does not exist"
        assert missing.command == "queue create grave"


async def test_a_full_disk_and_store_errors_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = MemoryEngine()

    async def examine(*, deep: bool) -> Examination:
        return Examination(now=wall_ms(), free_bytes=10, trouble=("it creaks: oil it",))

    monkeypatch.setattr(engine, "examine", examine)
    async with Holdfast(engine=engine):
        _, creaks = await found(engine, "store")
        assert (creaks.level, creaks.text, creaks.remedy) == ("warn", "it creaks", "oil it")
        [disk] = await found(engine, "disk")
        assert disk.level == "warn"
