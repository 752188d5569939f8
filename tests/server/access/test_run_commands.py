"""Jobs and schedules that run commands: every way in needs `run-commands`."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.model import (
    JobFilter,
    Record,
    State,
    Status,
)
from holdfast.core.verdict import (
    Cancel,
    Complete,
    Delete,
    Edit,
    Expedite,
    Move,
    Outcome,
    Redrive,
    Retime,
    Settlement,
)
from holdfast.engines.base import Engine
from holdfast.engines.wire import AmendCall, SaveCall
from holdfast.errors import Forbidden
from holdfast.ops.redrives import REDRIVES, RedrivePlan, Redrives, TakenJob
from holdfast.ops.schedules import SCHEDULES, Schedules
from holdfast.ops.ticks import Schedule
from holdfast.process import wall_ms
from holdfast.server.access.authorized_engine import AuthorizedEngine
from holdfast.server.access.caller import LOCAL_CALLER
from holdfast.server.http.operation import Operation
from tests.server.direct_server import ALL_OPERATIONS, direct_server, operation_id
from tests.server.sample_namespace import (
    ExampleRequest,
    SampleNamespace,
    example_request,
    fill_namespace,
    read_everything,
    send_example,
)
from tests.server.samples import caller, dead, job, leased, payload, store

COMMAND = b'{"command":["true"]}'
OTHER = b'{"command":["rm","-rf","/"]}'


async def test_command_jobs_are_refused_and_others_accepted() -> None:
    engine = await store()
    guarded = AuthorizedEngine(engine, LOCAL_CALLER)
    jobs = [job("a"), job("b", task="command"), job("c", task="webhook"), job("d")]
    receipts = await guarded.enqueue(jobs)
    assert [each.status for each in receipts] == ["new", "refused", "refused", "new"]
    assert [each.code for each in receipts] == ["", "forbidden", "forbidden", ""]
    assert [each.id for each in receipts] == ["a", "b", "c", "d"]
    assert await engine.get("b") is None
    receipts = await AuthorizedEngine(engine, caller("produce", "run-commands")).enqueue(jobs)
    assert [each.status for each in receipts] == ["duplicate", "new", "new", "duplicate"]


async def test_no_command_is_a_follow_up() -> None:
    engine = await store()
    await engine.enqueue([job("a"), job("b")])
    guarded = AuthorizedEngine(engine, caller("consume"))
    first, second = await leased(guarded, "a"), await leased(guarded, "b")
    then = Complete(then=(job("x"), job("c", task="command", payload=COMMAND)))
    settlements = [
        Settlement(lease=first, verdict=then),
        Settlement(lease=second, verdict=Complete(then=(job("y"),))),
    ]
    assert await guarded.settle(settlements) == [Outcome.REFUSED, Outcome.SETTLED]
    assert [await engine.get(id_) for id_ in ("x", "c")] == [None, None]
    assert await engine.get("y") is not None
    trusted = AuthorizedEngine(engine, caller("consume", "run-commands"))
    assert await trusted.settle(settlements[:1]) == [Outcome.SETTLED]
    assert await engine.get("c") is not None


@pytest.mark.parametrize("policy", ["merge", "replace"])
async def test_no_key_leads_into_a_command(policy: Any) -> None:
    engine = await store()
    await engine.enqueue([job("a", task="command", payload=COMMAND, key="k")])
    guarded = AuthorizedEngine(engine, LOCAL_CALLER)
    for task in ("command", "t"):
        await guarded.enqueue([job("b", task=task, payload=OTHER, key="k", key_policy=policy)])
    found = await engine.get("a")
    assert found is not None
    assert not (found.task == "command" and found.payload == OTHER)


@pytest.mark.parametrize(
    "wanted",
    [
        JobFilter(),
        JobFilter(ids=("a",)),
        JobFilter(ids=("a", "b")),
        JobFilter(queue="default"),
        JobFilter(task="command"),
        JobFilter(states=(State.DEAD, State.WAITING)),
        JobFilter(search="a"),
        JobFilter(key="k"),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_dead", [False, True])
async def test_no_command_is_edited(wanted: JobFilter, is_dead: bool) -> None:
    engine = await store()
    jobs = [job("a", task="command", payload=COMMAND, key="k"), job("b")]
    await (dead(engine, *jobs) if is_dead else engine.enqueue(jobs))
    guarded = AuthorizedEngine(engine, LOCAL_CALLER)
    for edit in (Edit(payload=OTHER), Edit(headers={"x": "y"}), Edit(content_type="text/x")):
        with pytest.raises(Forbidden, match="run-commands"):
            await guarded.amend(wanted, edit, limit=100)
    assert await payload(engine, "a") == COMMAND
    assert await payload(engine, "b") == b""
    trusted = AuthorizedEngine(engine, caller("operate", "run-commands"))
    assert await trusted.amend(wanted, Edit(payload=OTHER), limit=100)
    assert await payload(engine, "a") == OTHER


async def test_other_jobs_can_be_edited() -> None:
    engine = await store("other")
    await engine.enqueue([job("a", task="command", payload=COMMAND), job("b"), job("c", task="u")])
    await engine.enqueue([job("d", "other", "command", payload=COMMAND)])
    guarded = AuthorizedEngine(engine, LOCAL_CALLER)
    edit = Edit(payload=b"{}")
    assert await guarded.amend(JobFilter(task="t"), edit, limit=100) == 1
    assert await guarded.amend(JobFilter(ids=("b", "c")), edit, limit=100) == 2
    assert await guarded.amend(JobFilter(ids=("b", "c")), edit, limit=1) == 1
    assert await guarded.amend(JobFilter(ids=("a",), states=(State.DONE,)), edit, limit=9) == 0
    assert [await payload(engine, id_) for id_ in "abcd"] == [COMMAND, b"{}", b"{}", COMMAND]


async def test_an_operator_retries_moves_and_cancels_unchanged_commands() -> None:
    engine = await store("mail")
    await dead(engine, job("a", task="command", payload=COMMAND))
    guarded = AuthorizedEngine(engine, LOCAL_CALLER)
    one = JobFilter(ids=("a",))
    for act in (Redrive(), Expedite(), Retime(delay_ms=5), Move(queue="mail"), Cancel(), Delete()):
        assert await guarded.amend(one, act, limit=1) == 1, act


def schedule(task: str = "command", **more: Any) -> Schedule:
    nightly = job("-", task=task, payload=COMMAND)
    return Schedule(**{"name": "nightly", "every_ms": 60_000, "job": nightly, **more})


async def test_no_schedule_runs_a_command() -> None:
    engine = await store()
    mine = Schedules(AuthorizedEngine(engine, LOCAL_CALLER), wall_ms)
    with pytest.raises(Forbidden, match="run-commands"):
        await mine.add(schedule())
    await mine.add(schedule("t"))
    with pytest.raises(Forbidden, match="run-commands"):
        await mine.edit("nightly", job=schedule().job)
    assert [each.job.task for each in await mine.all()] == ["t"]
    trusted = Schedules(AuthorizedEngine(engine, caller("operate", "run-commands")), wall_ms)
    await trusted.edit("nightly", job=schedule().job)
    for change in (
        {"every_ms": 100},
        {"job": job("-", task="command", payload=OTHER)},
        {"job": job("-", task="t")},
        {"missed": "all"},
        {"grace_ms": 0},
        {"anchor_at": 5},
    ):
        with pytest.raises(Forbidden, match="run-commands"):
            await mine.edit("nightly", **change)
    [kept] = await trusted.all()
    assert (kept.job, kept.every_ms, kept.missed) == (schedule().job, 60_000, "once")


async def test_an_operator_pauses_resumes_and_removes_a_schedule_of_commands() -> None:
    engine = await store()
    await Schedules(engine, wall_ms).add(schedule())
    mine = Schedules(AuthorizedEngine(engine, LOCAL_CALLER), wall_ms)
    await mine.pause("nightly")
    await mine.resume("nightly")
    receipt = await mine.run_now("nightly", "now")
    assert (receipt.status, receipt.code) == (Status.REFUSED, "forbidden")
    assert await mine.remove("nightly")


async def test_ticks_of_a_command_are_noted_but_never_invented() -> None:
    """The scheduler notes its last tick; a note set back would enqueue all ticks again."""
    engine = await store()
    await Schedules(engine, wall_ms).add(schedule())
    guarded = AuthorizedEngine(engine, LOCAL_CALLER)
    [record] = await engine.load("schedule", limit=1)
    kept = msgspec.json.decode(record.value or b"", type=Schedule)

    def noted(passed_at: int) -> Record:
        return replace(record, value=msgspec.json.encode(replace(kept, passed_at=passed_at)))

    with pytest.raises(Forbidden):
        await guarded.save([noted(kept.passed_at - 3_600_000)])
    assert await guarded.save([noted(kept.passed_at + 60_000)]) == ["saved"]
    with pytest.raises(Forbidden):
        await guarded.save([noted(kept.passed_at)])


async def test_no_patch_of_dead_letters_edits_a_command() -> None:
    engine = await store()
    await dead(engine, job("a", task="command", payload=COMMAND), job("b", payload=b"{}"))
    mine = Redrives(AuthorizedEngine(engine, LOCAL_CALLER), wall_ms)
    for wanted in (JobFilter(), JobFilter(task="command"), JobFilter(ids=("a",))):
        with pytest.raises(Forbidden, match="run-commands"):
            await mine.start(RedrivePlan(wanted=wanted, patch=b'{"command":["x"]}'))
    redrive = await mine.start(RedrivePlan(wanted=JobFilter(task="t"), patch=b'{"n":1}'))
    plain = await mine.start(RedrivePlan(wanted=JobFilter()))
    assert {view.redrive.id for view in await mine.all()} == {redrive.id, plain.id}
    # The record lists the pending jobs, which may be others than those of the plan.
    found = {each.key: each for each in await engine.load("redrive", limit=10)}
    guarded = AuthorizedEngine(engine, LOCAL_CALLER)
    record = found[redrive.id]
    kept = REDRIVES.require(record)
    stolen = replace(kept, pending=(TakenJob("a", 3),))
    with pytest.raises(Forbidden, match="run-commands"):
        await guarded.save([REDRIVES.record(stolen.id, stolen, record.version)])
    other = REDRIVES.require(found[plain.id])
    changed = replace(other, plan=replace(other.plan, patch=b"{}"))
    with pytest.raises(Forbidden, match="run-commands"):
        await guarded.save([REDRIVES.record(changed.id, changed, found[plain.id].version)])
    good = replace(kept, pending=(TakenJob("b", 3),))
    assert await guarded.save([REDRIVES.record(good.id, good, record.version)]) == ["saved"]
    assert (await mine.cancel(redrive.id, "t")).state == "cancelled"


async def test_an_operator_cannot_set_the_worker_shell() -> None:
    engine = await store()
    shell = Record(kind="setting", key="worker-shell", value=b"yes")
    with pytest.raises(Forbidden, match="run-commands"):
        await AuthorizedEngine(engine, LOCAL_CALLER).save([shell])
    assert await engine.load("setting", limit=10) == []
    trusted = AuthorizedEngine(engine, caller("operate", "run-commands"))
    assert await trusted.save([shell]) == ["saved"]


# Every route, with every name in it that of something that runs a command.

_TURNED = {
    "wait": "command",
    "addressed": "command",
    "late": "command",
    "dead": "command-dead",
    "nightly": "command-nightly",
    "resting": "command-nightly",
}
WAYS_IN = {
    "POST /v1/queues/{queue}/jobs",
    "POST /v1/jobs",
    "PATCH /v1/jobs/{id}",
    "POST /v1/jobs/amend",
    "POST /v1/batches",
    "POST /v1/dead/retry",
    "POST /v1/redrives",
    "POST /v1/schedules",
    "PATCH /v1/schedules/{name}",
    "POST /v1/schedules/{name}/run",
    "PUT /v1/config/{name}",
    "POST /v1/engine/enqueue",
    "POST /v1/engine/settle",
    "POST /v1/engine/amend",
    "POST /v1/engine/save",
}
"""Operations by which a caller with `run-commands` creates or changes a command."""


def turned(given: Any) -> Any:
    """The same request, about commands."""
    match given:
        case dict():
            found = {key: turned(value) for key, value in given.items()}
            if "task" in found:
                found["task"] = "command"
            return found
        case list() | tuple():
            return [turned(each) for each in given]
        case str():
            return _TURNED.get(given, given)
        case _:
            return given


def about_commands(operation: Operation, of: SampleNamespace) -> ExampleRequest:
    asked = example_request(operation, of)
    body = turned(msgspec.to_builtins(asked.body, builtin_types=(bytes,)))
    match operation_id(operation):
        case "POST /v1/dead/retry" | "POST /v1/redrives":
            body = {"filter": {"task": "command"}, "edit": {"command": ["other"]}}
        case "PUT /v1/config/{name}":
            return ExampleRequest({"name": "worker-shell"}, body={"value": "yes"})
        case "POST /v1/engine/amend":
            body = AmendCall(JobFilter(), Edit(payload=OTHER), 100)
        case "POST /v1/engine/save":
            body = SaveCall([SCHEDULES.record("evil", schedule(name="evil"))])
        case _:
            pass
    return ExampleRequest(turned(asked.names), asked.query, body)


async def commands(engine: Engine) -> Any:
    """All that runs commands, or says how, but for whether and where it runs now."""
    found = await read_everything(engine)
    schedules = [
        msgspec.json.decode(record.value, type=Schedule)
        for record, _ in found["records"].get("schedule", {}).values()
    ]
    plans = [
        msgspec.json.decode(record.value)["plan"]
        for record, _ in found["records"].get("redrive", {}).values()
    ]
    return (
        {
            each.id: (each.payload, each.headers, each.labels, each.content_type)
            for each in found["jobs"]
            if each.task == "command"
        },
        [(each.job, each.cron, each.every_ms) for each in schedules if each.job.task == "command"],
        [plan for plan in plans if "patch" in plan],
        [
            record
            for record, _ in found["records"].get("setting", {}).values()
            if "shell" in record.key
        ],
    )


def fewer(before: Any, after: Any) -> bool:
    """True if entries were only removed."""
    lists = zip(before[1:], after[1:], strict=True)
    same = all(each in old for old, new in lists for each in new)
    return same and after[0].items() <= before[0].items()


@pytest.mark.parametrize("operation", ALL_OPERATIONS, ids=operation_id)
async def test_no_route_changes_a_command_without_run_commands(operation: Operation) -> None:
    """Neither on an open server, nor for an admin; and each way in is one with the right."""
    for scopes in ((), ("admin",), ("admin", "run-commands")):
        async with direct_server() as at:
            token = await at.token(*scopes) if scopes else None
            here = await fill_namespace(at.engine(), "zz")
            before = await commands(at.engine())
            asked = about_commands(operation, here)
            reply = await send_example(at, operation, asked, token=token)
            assert reply.status < 500, reply.body
            same = fewer(before, await commands(at.engine()))
            if "run-commands" not in scopes:
                assert same
            else:
                assert same is (operation_id(operation) not in WAYS_IN), reply
