"""The audit: every operator's act, who did it, from where, and what came of it."""

import logging
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.model import JobFilter, NewJob, Record
from holdfast.core.verdict import Cancel, Delete
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable, Forbidden, StorageFull
from holdfast.server import audit
from holdfast.server.audit import KIND, Act, Audit
from holdfast.server.callers import ANYBODY
from holdfast.server.guarded import Guarded, Watch
from holdfast.server.operations import Operation
from holdfast.server.settings import ServerSettings
from tests.server.house import ALL, House, house, name_of
from tests.server.worlds import example, try_out, world

AUTH = ServerSettings(auth=True)


async def acts(at: House) -> list[Act]:
    found = await at.server.audit_of("default", at.server.app).page(limit=1000)
    return [act for _, act in found if act is not None]


# What no operator does: what producers and workers do all day, and what only reads.
NO_ACTS = {
    "POST /v1/queues/{queue}/jobs",
    "POST /v1/jobs",
    "POST /v1/lease",
    "POST /v1/renew",
    "POST /v1/settle",
    "POST /v1/batches",
    *(
        f"POST /v1/engine/{verb}"
        for verb in (
            *("queues", "enqueue", "lease", "renew", "settle", "overdue", "expired"),
            *("finished", "recount", "flow", "waits", "get", "find", "tally", "load", "examine"),
            "save",
        )
    ),
}
BREAKERS = {"POST /v1/breakers/{name}/open", "POST /v1/breakers/{name}/close"}


@pytest.mark.parametrize("operation", ALL, ids=name_of)
async def test_every_act_of_an_operator_is_written_down(operation: Operation) -> None:
    async with house(AUTH) as at:
        token = await at.token("admin", "run-commands", name="ann")
        await at.token("produce", name="token")
        here = await world(at.engine(), "zz")
        reply = await try_out(at, operation, example(operation, here), token=token, peer="10.1.2.3")
        assert reply.status < 400, reply.body
        found = await acts(at)
        if operation.method == "GET" or name_of(operation) in NO_ACTS:
            assert found == []
            return
        assert found, "nobody would know who did this"
        for act in found:
            assert (act.who, act.token, act.peer) == ("ann", token.split("_")[1], "10.1.2.3")
            assert act.outcome == "done"
            assert act.what
            assert act.on


async def test_it_says_what_and_on_what_but_no_payload() -> None:
    async with house() as at:
        engine = at.engine()
        await engine.enqueue([NewJob(id="a", task="t", payload=b'{"password":"hunter2"}')])
        await at.ask("PATCH", "/v1/jobs/a", {"payload": {"password": "hunter3"}})
        await at.ask("POST", "/v1/queues/default/pause", {"text": "x"})
        await at.ask("POST", "/v1/jobs/a/cancel", {})
        found = [(act.what, act.on) for act in await acts(at)]
        assert ("queue.declare", "default paused=True") in found
        assert any(what == "jobs.cancel" and '"a"' in on for what, on in found)
        assert any(what == "jobs.edit" and ": payload" in on for what, on in found)
        assert "hunter" not in repr(found)
        assert {act.who for act in await acts(at)} == {"local"}


async def test_what_was_refused_is_written_down_too() -> None:
    async with house(AUTH) as at:
        token = await at.token("operate", name="bob")
        await at.engine().enqueue([NewJob(id="a", task="command", payload=b"{}")])
        reply = await at.ask("PATCH", "/v1/jobs/a", {"payload": {"command": "x"}}, token=token)
        assert reply.status == 403
        assert [(act.who, act.what, act.outcome) for act in await acts(at)] == [
            ("bob", "jobs.edit", "forbidden")
        ]


async def test_only_an_admin_reads_it_newest_first_in_pages() -> None:
    async with house(AUTH) as at:
        admin, operator = await at.token("admin", name="root"), await at.token("operate")
        for number in range(5):
            body = {"max_attempts": number + 1}
            await at.ask("PATCH", "/v1/queues/default", body, token=operator)
        assert (await at.ask("GET", "/v1/audit", token=operator)).status == 403
        seen: list[Any] = []
        after = ""
        while True:
            page = (await at.ask("GET", f"/v1/audit?limit=2{after}", token=admin)).json
            seen += page["acts"]
            if page["after"] is None:
                break
            after = f"&after={page['after']}"
        changes = [each["on"].rpartition("=")[2] for each in seen]
        assert changes == ["5", "4", "3", "2", "1"]
        assert [each["at"] for each in seen] == sorted((each["at"] for each in seen), reverse=True)


class Faulty(MemoryEngine):
    """Refuses to write the audit, in so many ways."""

    error: Exception | None = None

    async def save(self, records: Any) -> Any:
        if self.error is not None and records[0].kind == KIND:
            raise self.error
        return await super().save(records)


def guarded(engine: MemoryEngine) -> Guarded:
    return Guarded(engine, ANYBODY, Watch(audit=Audit(lambda: engine, lambda: 1_000)))


async def test_what_cannot_be_written_down_is_not_done() -> None:
    engine = Faulty()
    await engine.open()
    await engine.enqueue([NewJob(id="a", task="t")])
    engine.error = EngineUnavailable("away")
    with pytest.raises(EngineUnavailable):
        await guarded(engine).amend(JobFilter(ids=("a",)), Delete(), limit=1)
    assert await engine.get("a") is not None


async def test_room_can_be_made_on_a_full_disk_and_the_log_says_who_did(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Faulty()
    await engine.open()
    await engine.enqueue([NewJob(id="a", task="t")])
    engine.error = StorageFull("full")
    with caplog.at_level(logging.WARNING):
        assert await guarded(engine).amend(JobFilter(ids=("a",)), Delete(), limit=1) == 1
    assert "jobs.delete by local" in caplog.text


async def test_one_that_was_begun_and_never_ended_has_no_outcome() -> None:
    class Dying(MemoryEngine):
        async def amend(self, *_given: Any, **_more: Any) -> int:
            raise SystemExit

    engine = Dying()
    await engine.open()
    with pytest.raises(SystemExit):
        await guarded(engine).amend(JobFilter(ids=("a",)), Cancel(), limit=1)
    [(_, act)] = await Audit(lambda: engine, lambda: 1_000).page()
    assert act is not None
    assert (act.what, act.outcome) == ("jobs.cancel", "")


async def test_old_and_too_many_acts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "KEPT_MAX", 2_000)
    engine = MemoryEngine()
    await engine.open()
    now = 10 * audit.KEPT_MS
    book = Audit(lambda: engine, lambda: now)
    old = Record(kind=KIND, key=audit._key(now - audit.KEPT_MS - 1), value=b"{}")
    young = replace(old, key=audit._key(now - audit.KEPT_MS + 1))
    await engine.save([old, young])
    async with book.doing(Act(at=0, who="a", what="b")):
        pass
    keys = [each.key for each in await engine.load(KIND, limit=100)]
    assert young.key in keys
    assert old.key not in keys
    for batch in range(4):
        at = [now - 100_000 + batch * 1_000 + number for number in range(1_000)]
        await engine.save([Record(kind=KIND, key=audit._key(each), value=b"{}") for each in at])
    for _ in range(201):
        async with book.doing(Act(at=0, who="a", what="b")):
            pass
    left = []
    after = None
    while page := await engine.load(KIND, after=after, limit=1_000):
        left += page
        after = page[-1].key
    assert len(left) < 4_203


async def test_the_forbidden_is_told_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    engine = MemoryEngine()
    await engine.open()
    with pytest.raises(Forbidden):
        async with Audit(lambda: engine, lambda: 5).doing(Act(at=0, who="a", what="b", on="c")):
            raise Forbidden("no")
    [(_, act)] = await Audit(lambda: engine, lambda: 5).page()
    assert act == Act(at=5, who="a", what="b", on="c", outcome="forbidden")
    assert caplog.text == ""
