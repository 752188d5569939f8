"""Acts on many jobs: callers touch only jobs that they may change, and nobody forges an act."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.core.model import JobFilter, NewJob, Queue, State
from holdfast.engines.base import Engine
from holdfast.ops.jobs.act_views import read_acts
from holdfast.ops.jobs.acts import (
    ACT_JOBS,
    ACTS,
    ActJobs,
    ActPlan,
    ActRecord,
    ActState,
    CountedJob,
)
from holdfast.process import wall_ms
from holdfast.server.access.authorized_engine import AuthorizedEngine
from holdfast.server.settings import ServerSettings
from holdfast.upkeep import Amender
from tests.server.direct_server import DirectServer, Refused, direct_server
from tests.server.samples import caller

AUTH = ServerSettings(auth=True)


@pytest.fixture
async def at() -> AsyncIterator[DirectServer]:
    """Queues of mail. are those of a caller with that prefix; mail and other are not."""
    async with direct_server(AUTH) as at:
        engine = at.engine()
        for name in ("mail.in", "mail.out", "mail", "other"):
            await engine.declare(Queue(name=name))
        await engine.enqueue(
            [
                NewJob(id="own", task="t", queue="mail.in"),
                NewJob(id="strange", task="t", queue="other"),
                NewJob(id="command", task="command", queue="mail.in", payload=b'{"command":["x"]}'),
            ]
        )
        yield at


async def post(at: DirectServer, token: str, path: str, body: Any = None) -> tuple[int, Any]:
    reply = await at.ask("POST", f"/v1/acts{path}", body, token=token)
    return reply.status, reply.json if reply.status < 300 else reply.code


async def states(engine: Engine) -> dict[str, State]:
    return {job.id: job.state for job in (await engine.find(JobFilter(), limit=9)).jobs}


async def amend_all(at: DirectServer) -> None:
    amender = Amender(at.engine(), wall_ms)
    while await amender.once() == 0:
        pass


async def test_a_caller_with_a_prefix_touches_only_its_queues(at: DirectServer) -> None:
    token = await at.token("operate", prefix="mail.")
    cancel = {"act": "cancel", "filter": {}}
    assert await post(at, token, "", cancel) == (403, "forbidden")
    assert await post(at, token, "", {**cancel, "filter": {"queue": "other"}}) == (403, "forbidden")
    by_id = {"act": "cancel", "ids": ["own", "strange"]}
    status, act = await post(at, token, "", by_id)
    assert (status, act["count"]) == (201, 1)
    move = {"act": "move", "filter": {"queue": "mail.in"}, "queue": "other"}
    assert await post(at, token, "", move) == (403, "forbidden")
    assert (await post(at, token, f"/{act['id']}/run"))[0] == 200
    await amend_all(at)
    assert await states(at.engine()) == {
        "own": State.CANCELLED,
        "strange": State.WAITING,
        "command": State.WAITING,
    }


async def test_acts_on_other_queues_do_not_exist_for_a_caller_with_a_prefix(
    at: DirectServer,
) -> None:
    admin = await at.token("admin", "run-commands", name="ann")
    hidden = []
    cases: list[dict[str, Any]] = [
        {"filter": {}},
        {"filter": {"queue": "other"}},
        {"ids": ["own", "strange"]},
    ]
    for which in cases:
        _, act = await post(at, admin, "", {"act": "cancel", **which})
        hidden.append(act["id"])
    _, shown = await post(at, admin, "", {"act": "cancel", "filter": {"queue": "mail.in"}})
    out = {"act": "move", "filter": {"queue": "mail.in"}, "queue": "other"}
    _, moving = await post(at, admin, "", out)
    edit = {"act": "edit", "filter": {"queue": "mail.in"}, "patch": {"command": ["y"]}}
    _, editing = await post(at, admin, "", edit)
    token = await at.token("operate", prefix="mail.")
    listed = (await at.ask("GET", "/v1/acts", token=token)).json["acts"]
    assert {act["id"] for act in listed} == {shown["id"], moving["id"], editing["id"]}
    for id_ in hidden:
        assert (await at.ask("GET", f"/v1/acts/{id_}", token=token)).status == 404
        assert (await post(at, token, f"/{id_}/run"))[0] == 404
        assert (await post(at, token, f"/{id_}/stop"))[0] == 404
    # Running an act needs the same rights as counting it.
    assert await post(at, token, f"/{moving['id']}/run") == (403, "forbidden")
    assert await post(at, token, f"/{editing['id']}/run") == (403, "forbidden")
    await amend_all(at)
    assert set((await states(at.engine())).values()) == {State.WAITING}


async def test_an_observer_reads_and_changes_nothing(at: DirectServer) -> None:
    operator, observer = await at.token("operate"), await at.token("observe")
    cancel = {"act": "cancel", "filter": {"queue": "mail.in"}}
    _, act = await post(at, operator, "", cancel)
    assert (await at.ask("GET", "/v1/acts", token=observer)).json["acts"] == [act]
    for path, body in (("", cancel), (f"/{act['id']}/run", None), (f"/{act['id']}/stop", None)):
        assert await post(at, observer, path, body) == (403, "forbidden")
    for scope in ("produce", "consume"):
        other = await at.token(scope)
        assert (await at.ask("GET", "/v1/acts", token=other)).status == 403
        assert (await post(at, other, f"/{act['id']}/run"))[0] == 403


async def test_editing_command_jobs_needs_run_commands(at: DirectServer) -> None:
    operator = await at.token("operate")
    edit = {"act": "edit", "filter": {"queue": "mail.in"}, "patch": {"command": ["y"]}}
    assert await post(at, operator, "", edit) == (403, "forbidden")
    others = {**edit, "filter": {"queue": "mail.in", "task": "t"}}
    status, act = await post(at, operator, "", others)
    assert (status, act["count"]) == (201, 1)
    allowed = await at.token("operate", "run-commands", name="bob")
    status, act = await post(at, allowed, "", edit)
    assert (status, act["count"]) == (201, 2)


@pytest.mark.parametrize("scope", ["operate", "admin"])
async def test_nobody_forges_an_act(at: DirectServer, scope: str) -> None:
    """Upkeep carries out acts with all rights, so only operations of the server store them."""
    token = await at.token(scope, "run-commands", name="eve")
    plan = ActPlan(act="cancel", wanted=JobFilter(queue="other"))
    act = ActRecord(id="f", plan=plan, state=ActState.RUNNING, count=1, queues=("other",))
    jobs = ActJobs(jobs=(CountedJob("strange", 1),), created_before=2**50)
    for record in (ACTS.record("f", act), ACT_JOBS.record("f/000", jobs)):
        with pytest.raises(Refused):
            await at.call("save", token, records=[record])
    await amend_all(at)
    assert (await states(at.engine()))["strange"] is State.WAITING


async def test_read_acts_shows_what_the_engine_of_a_caller_shows(at: DirectServer) -> None:
    operator = await at.token("operate")
    for queue in ("mail.in", "other"):
        await post(at, operator, "", {"act": "cancel", "filter": {"queue": queue}})
    every = await read_acts(at.engine())
    assert len(every) == 2
    own = await read_acts(AuthorizedEngine(at.engine(), caller("observe", prefix="mail.")))
    assert [view.says for view in own.values()] == ["Cancel 2 waiting jobs in queue mail.in"]


async def test_acts_of_another_namespace_do_not_exist(at: DirectServer) -> None:
    _, act = await post(at, await at.token("operate"), "", {"act": "cancel", "filter": {}})
    other = await at.token("operate", namespace="elsewhere", name="bob")
    assert (await at.ask("GET", "/v1/acts", token=other)).json == {"acts": []}
    assert (await post(at, other, f"/{act['id']}/run"))[0] == 404
