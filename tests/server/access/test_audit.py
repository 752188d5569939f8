"""The audit: every operator's act, its author, address and outcome."""

import logging
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.model import JobFilter, NewJob, Record, State
from holdfast.core.verdict import Amendment, Cancel, Delete, Edit, Move
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable, Forbidden, StorageFull
from holdfast.ops import audit
from holdfast.ops.audit import AUDIT_KIND, Audit, AuditEntry, describe_jobs
from holdfast.server.access.authorized_engine import AccessControls, AuthorizedEngine
from holdfast.server.access.caller import LOCAL_CALLER
from holdfast.server.http.operation import Operation
from holdfast.server.http.uvicorn_server import AccessLog
from holdfast.server.settings import ServerSettings
from tests.server.direct_server import ALL_OPERATIONS, DirectServer, direct_server, operation_id
from tests.server.sample_namespace import example_request, fill_namespace, send_example

AUTH = ServerSettings(auth=True)


async def acts(at: DirectServer) -> list[AuditEntry]:
    found = await at.server.audit_of("default", at.server.app).page(limit=1000)
    return [act for _, act in found if act is not None]


# Operations that are not audited: those of producers and workers, reads, and an act on many jobs
# before it is run.
NO_ACTS = {
    "POST /v1/acts",
    "POST /v1/queues/{queue}/jobs",
    "POST /v1/jobs",
    "POST /v1/lease",
    "POST /v1/renew",
    "POST /v1/settle",
    "POST /v1/batches",
    # The caller is not signed in.
    "DELETE /v1/session",
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


@pytest.mark.parametrize("operation", ALL_OPERATIONS, ids=operation_id)
async def test_every_act_of_an_operator_is_audited(operation: Operation) -> None:
    async with direct_server(AUTH) as at:
        token = await at.token("admin", "run-commands", name="ann")
        await at.token("produce", name="token")
        here = await fill_namespace(at.engine(), "zz")
        reply = await send_example(
            at, operation, example_request(operation, here), token=token, peer="10.1.2.3"
        )
        assert reply.status < 400, reply.body
        found = await acts(at)
        if operation.method == "GET" or operation_id(operation) in NO_ACTS:
            assert found == []
            return
        assert found, "nobody would know who did this"
        for act in found:
            assert (act.who, act.token, act.peer) == ("ann", token.split("_")[1], "10.1.2.3")
            assert act.outcome == "done"
            assert act.what
            assert act.on


async def test_an_entry_has_the_act_and_its_object_but_no_payload() -> None:
    async with direct_server() as at:
        engine = at.engine()
        await engine.enqueue([NewJob(id="a", task="t", payload=b'{"password":"hunter2"}')])
        await at.ask("PATCH", "/v1/jobs/a", {"payload": {"password": "hunter3"}})
        await at.ask("POST", "/v1/queues/default/pause", {"text": "x"})
        await at.ask("POST", "/v1/jobs/a/cancel", {"text": "sent by hand"})
        found = [(act.what, act.on) for act in await acts(at)]
        assert ("queue.declare", "default paused=True") in found
        assert any(
            what == "jobs.cancel" and on.endswith("; reason: sent by hand") for what, on in found
        )
        assert any(what == "jobs.edit" and ": payload" in on for what, on in found)
        assert "hunter" not in repr(found)
        assert {act.who for act in await acts(at)} == {"local"}


def test_a_reason_is_kept_beside_a_long_filter() -> None:
    ids = tuple(f"job-{number}" for number in range(1_000))
    on = describe_jobs(JobFilter(ids=ids), Cancel(text="sent by hand"))
    assert on.startswith("ids=job-0,job-1,")
    assert on[:1_000].endswith("; reason: sent by hand")


@pytest.mark.parametrize(
    ("wanted", "amendment", "on"),
    [
        (JobFilter(), Cancel(), "all jobs"),
        (
            JobFilter(queue="mail", states=(State.WAITING, State.LEASED)),
            Cancel(),
            "queue=mail states=waiting,leased",
        ),
        (JobFilter(ids=("a",), version=3), Move(queue="b"), "ids=a version=3 to queue b"),
        (
            JobFilter(labels={"region": "eu"}, tenant="x; reason: y"),
            Edit(payload=b"1", priority=2, text="z"),
            "tenant='x; reason: y' labels=region=eu changing: payload, priority; reason: z",
        ),
    ],
)
def test_acts_on_jobs_are_described(wanted: JobFilter, amendment: Amendment, on: str) -> None:
    assert describe_jobs(wanted, amendment) == on


async def test_refused_acts_are_audited() -> None:
    async with direct_server(AUTH) as at:
        token = await at.token("operate", name="bob")
        await at.engine().enqueue([NewJob(id="a", task="command", payload=b"{}")])
        reply = await at.ask("PATCH", "/v1/jobs/a", {"payload": {"command": "x"}}, token=token)
        assert reply.status == 403
        assert [(act.who, act.what, act.outcome) for act in await acts(at)] == [
            ("bob", "jobs.edit", "forbidden")
        ]


async def test_only_an_admin_reads_the_audit_in_pages_newest_first() -> None:
    async with direct_server(AUTH) as at:
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
        if self.error is not None and records[0].kind == AUDIT_KIND:
            raise self.error
        return await super().save(records)


def guarded(engine: MemoryEngine) -> AuthorizedEngine:
    return AuthorizedEngine(
        engine, LOCAL_CALLER, AccessControls(audit=Audit(lambda: engine, lambda: 1_000))
    )


async def test_an_act_is_refused_if_the_audit_cannot_be_written() -> None:
    engine = Faulty()
    await engine.open()
    await engine.enqueue([NewJob(id="a", task="t")])
    engine.error = EngineUnavailable("away")
    with pytest.raises(EngineUnavailable):
        await guarded(engine).amend(JobFilter(ids=("a",)), Delete(), limit=1)
    assert await engine.get("a") is not None


async def test_on_a_full_disk_deletes_are_allowed_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Faulty()
    await engine.open()
    await engine.enqueue([NewJob(id="a", task="t")])
    engine.error = StorageFull("full")
    with caplog.at_level(logging.WARNING):
        assert await guarded(engine).amend(JobFilter(ids=("a",)), Delete(), limit=1) == 1
    assert "jobs.delete by local" in caplog.text


async def test_an_interrupted_act_has_no_outcome() -> None:
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


async def test_old_and_excess_acts_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "ENTRIES_MAX", 2_000)
    engine = MemoryEngine()
    await engine.open()
    now = 10 * audit.RETENTION_MS
    book = Audit(lambda: engine, lambda: now)
    old = Record(kind=AUDIT_KIND, key=audit._key(now - audit.RETENTION_MS - 1), value=b"{}")
    young = replace(old, key=audit._key(now - audit.RETENTION_MS + 1))
    await engine.save([old, young])
    async with book.doing(AuditEntry(at=0, who="a", what="b")):
        pass
    keys = [each.key for each in await engine.load(AUDIT_KIND, limit=100)]
    assert young.key in keys
    assert old.key not in keys
    for batch in range(4):
        at = [now - 100_000 + batch * 1_000 + number for number in range(1_000)]
        await engine.save(
            [Record(kind=AUDIT_KIND, key=audit._key(each), value=b"{}") for each in at]
        )
    for _ in range(201):
        async with book.doing(AuditEntry(at=0, who="a", what="b")):
            pass
    left = []
    after = None
    while page := await engine.load(AUDIT_KIND, after=after, limit=1_000):
        left += page
        after = page[-1].key
    assert len(left) < 4_203


async def test_a_forbidden_act_has_its_error_as_outcome(caplog: pytest.LogCaptureFixture) -> None:
    engine = MemoryEngine()
    await engine.open()
    with pytest.raises(Forbidden):
        async with Audit(lambda: engine, lambda: 5).doing(
            AuditEntry(at=0, who="a", what="b", on="c")
        ):
            raise Forbidden("no")
    [(_, act)] = await Audit(lambda: engine, lambda: 5).page()
    assert act == AuditEntry(at=5, who="a", what="b", on="c", outcome="forbidden")
    assert caplog.text == ""


async def test_revoking_by_the_whole_token_leaves_its_secret_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with direct_server(AUTH) as at:
        admin = await at.token("admin")
        leaked = await at.token("produce", name="leaked")
        secret = leaked.split("_")[2]
        at.application = AccessLog(at.application)  # type: ignore[assignment]
        with caplog.at_level(logging.INFO, logger="holdfast.access"):
            reply = await at.ask("DELETE", f"/v1/tokens/{leaked}", token=admin)
        assert (reply.status, reply.json["name"]) == (200, "leaked")
        assert "/v1/tokens/hf_" in caplog.text
        assert secret not in caplog.text
        reply = await at.ask("GET", "/v1/audit", token=admin)
        [act] = reply.json["acts"]
        assert (act["what"], act["on"]) == ("token.revoke", leaked.split("_")[1])
        assert secret.encode() not in reply.body
        for record in await at.engine().load(AUDIT_KIND, limit=10):
            assert secret.encode() not in (record.value or b"")


async def test_a_broken_entry_does_not_hide_older_ones() -> None:
    async with direct_server(AUTH) as at:
        admin = await at.token("admin")
        for name in ("a", "b"):
            await at.ask("POST", "/v1/queues", {"name": name}, token=admin)
        newer = Record(kind=AUDIT_KIND, key=f"{'0' * 15}-{'0' * 8}", value=b"another version's")
        await at.engine().save([newer])
        seen: list[str] = []
        after = ""
        while True:
            reply = await at.ask("GET", f"/v1/audit?limit=1{after}", token=admin)
            seen += [act["on"] for act in reply.json["acts"]]
            if reply.json["after"] is None:
                break
            after = f"&after={reply.json['after']}"
        assert seen == ["b", "a"]
