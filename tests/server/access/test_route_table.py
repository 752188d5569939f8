"""Every operation there is, asked by the wrong page, the wrong caller, or on the wrong server: all
are refused, and the store stays as it was."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.conformance.contract.cases import case
from holdfast.core import bounds
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import ReadOnly
from holdfast.server.access.authorized_engine import AccessControls, AuthorizedEngine
from holdfast.server.access.caller import GRANTABLE, LOCAL_CALLER, with_implied
from holdfast.server.application import OPERATIONS
from holdfast.server.dashboard import files
from holdfast.server.http.operation import Operation
from holdfast.server.settings import ServerSettings
from holdfast.server.sqs.shapes import ACTIONS
from holdfast.testing.clock import ManualClock
from tests.server.access.test_authorized_engine import VERBS
from tests.server.direct_server import (
    DASHBOARD,
    SCOPED_OPERATIONS,
    DirectReply,
    DirectServer,
    direct_server,
    operation_id,
)
from tests.server.sample_namespace import (
    SampleNamespace,
    example_request,
    fill_namespace,
    read_everything,
    send_example,
)
from tests.server.samples import store
from tests.server.sqs.sqs_client import SqsClient
from tests.server.sqs.test_hostile import SAMPLES

AUTH = ServerSettings(auth=True)
ALL = (*OPERATIONS, *files.OPERATIONS)
SCOPES = ("admin", "run-commands")


class Filled:
    """A server with one of everything in its store, and the cookie of an admin."""

    def __init__(self, at: DirectServer, here: SampleNamespace, cookie: str) -> None:
        self.at = at
        self._here = here
        self.cookie = cookie

    async def ask(self, operation: Operation, **more: Any) -> DirectReply:
        if operation in files.OPERATIONS:
            return await self.at.ask("GET", operation.path, **more)
        return await send_example(
            self.at, operation, example_request(operation, self._here), **more
        )

    async def ask_as_page(self, operation: Operation, **more: Any) -> DirectReply:
        return await self.ask(operation, **{**DASHBOARD, "cookie": self.cookie, **more})

    async def state(self) -> dict[str, Any]:
        found = await read_everything(self.at.engine())
        # The log may say that an act was refused.
        found["records"].pop("audit", None)
        return found


@asynccontextmanager
async def filled(settings: ServerSettings = AUTH) -> AsyncIterator[Filled]:
    async with direct_server(settings, default=MemoryEngine(clock=ManualClock())) as at:
        here = await fill_namespace(at.engine(), "zz")
        await at.token("produce", name="token")
        token = await at.token(*SCOPES, name="admin")
        yield Filled(at, here, await at.sign_in(token))


OTHER_PAGES = {
    "without Origin": {"origin": None},
    "of a foreign Origin": {"origin": "https://evil.example"},
    "of a foreign Origin on this host": {"origin": "https://127.0.0.1:8000"},
    "of an opaque Origin": {"origin": "null"},
    "of another site": {"origin": None, "sec_fetch_site": "cross-site"},
    "of another port": {"origin": None, "sec_fetch_site": "same-site"},
    "with the cookie but no header": {"holdfast_dashboard": None},
    "framed": {"origin": None, "sec_fetch_dest": "iframe", "sec_fetch_site": "same-origin"},
    "framed elsewhere": {
        "origin": None,
        "sec_fetch_dest": "iframe",
        "sec_fetch_mode": "navigate",
        "sec_fetch_site": "cross-site",
    },
    "embedded": {"sec_fetch_dest": "object"},
}


@pytest.mark.parametrize("change", OTHER_PAGES.values(), ids=OTHER_PAGES)
async def test_a_session_is_of_no_use_to_other_pages(change: dict[str, Any]) -> None:
    async with filled() as server:
        before = await server.state()
        for operation in SCOPED_OPERATIONS:
            with case(operation_id(operation)):
                reply = await server.ask_as_page(operation, **change)
                refused = ((401, "unauthenticated"), (403, "forbidden"))
                assert (reply.status, reply.code) in refused
        assert await server.state() == before


async def test_the_same_requests_of_the_own_page_are_admitted() -> None:
    """Otherwise the refusals above would show nothing."""
    async with filled() as server:
        for operation in SCOPED_OPERATIONS:
            with case(operation_id(operation)):
                reply = await server.ask_as_page(operation)
                assert reply.status not in (401, 403), reply.body


@pytest.mark.parametrize("place", ["iframe", "frame", "embed", "object"])
async def test_nothing_is_shown_in_a_frame(place: str) -> None:
    """Not the page itself, not to a user who needs no token, nor with one."""
    frame = {"sec_fetch_dest": place, "sec_fetch_mode": "navigate", "sec_fetch_site": "same-origin"}
    async with filled(ServerSettings()) as server:
        token = await server.at.token(*SCOPES, name="more")
        for operation in ALL:
            with case(operation_id(operation)):
                for given in (None, token):
                    reply = await server.ask(operation, token=given, **frame)
                    assert (reply.status, reply.code) == (403, "forbidden")


@pytest.mark.parametrize("end", ["signed out", "revoked", "expired", "expired token"])
async def test_an_ended_session_is_of_no_use(end: str) -> None:
    async with filled() as server:
        tokens = server.at.server.tokens
        wall = tokens._wall_ms
        token = await server.at.token(*SCOPES, name="ann", expires_ms=bounds.DAY_MS)
        cookie = await server.at.sign_in(token)
        used = [SCOPED_OPERATIONS[0]]
        assert (await server.ask_as_page(used[0], cookie=cookie)).status == 200
        match end:
            case "signed out":
                await server.at.ask("DELETE", "/v1/session", cookie=cookie, **DASHBOARD)
            case "revoked":
                await tokens.revoke("ann")
            case "expired":
                tokens._wall_ms = lambda: wall() + 12 * bounds.HOUR_MS
            case _:
                tokens._wall_ms = lambda: wall() + bounds.DAY_MS
        before = await server.state()
        for operation in SCOPED_OPERATIONS:
            with case(operation_id(operation)):
                reply = await server.ask_as_page(operation, cookie=cookie)
                assert (reply.status, reply.code) == (401, "unauthenticated")
        assert await server.state() == before


async def test_a_session_of_a_narrower_token_is_refused() -> None:
    async with filled() as server:
        cookies = {}
        for scope in GRANTABLE:
            token = await server.at.token(scope, name=scope)
            cookies[scope] = await server.at.sign_in(token)
        elsewhere = await server.at.token(*SCOPES, name="b", namespace="b")
        other = await server.at.sign_in(elsewhere)
        before = await server.state()
        for operation in SCOPED_OPERATIONS:
            assert operation.needs is not None
            for scope, cookie in cookies.items():
                if with_implied([scope]).isdisjoint(operation.needs):
                    with case(operation_id(operation), scope):
                        reply = await server.ask_as_page(operation, cookie=cookie)
                        assert (reply.status, reply.code) == (403, "forbidden")
            with case(operation_id(operation), "another namespace"):
                asked = {"cookie": other, "holdfast_namespace": "default"}
                reply = await server.ask_as_page(operation, **asked)
                assert (reply.status, reply.code) == (403, "forbidden")
        assert await server.state() == before


async def test_an_observer_changes_nothing() -> None:
    async with filled() as server:
        cookie = await server.at.sign_in(await server.at.token("observe", name="ann"))
        before = await server.state()
        for operation in SCOPED_OPERATIONS:
            with case(operation_id(operation)):
                reply = await server.ask_as_page(operation, cookie=cookie)
                if operation.changes:
                    assert (reply.status, reply.code) == (403, "forbidden")
        assert await server.state() == before


async def test_a_read_only_server_changes_nothing() -> None:
    """For nobody: neither with a token, nor signed in, nor for its own user."""
    async with filled(ServerSettings(read_only=True)) as server:
        token = await server.at.token(*SCOPES, name="ann")
        before = await server.state()
        ways: tuple[dict[str, Any], ...] = ({"token": token}, {"cookie": server.cookie}, {})
        for operation in SCOPED_OPERATIONS:
            for way in ways:
                with case(operation_id(operation), list(way)):
                    asked = {**DASHBOARD, **way} if "cookie" in way else way
                    reply = await server.ask(operation, **asked)
                    if operation.changes:
                        assert (reply.status, reply.code) == (403, "read_only")
                        assert b"--read-only" in reply.body
                    elif "tokens" not in operation.path:
                        assert reply.status < 400, reply.body
        assert await server.state() == before
        view = await server.at.ask("GET", "/v1/session", token=token)
        assert view.json["read_only"] is True
        # People can sign in and out.
        cookie = await server.at.sign_in(token)
        gone = await server.at.ask("DELETE", "/v1/session", cookie=cookie, **DASHBOARD)
        assert gone.status == 204


def test_every_operation_that_only_reads_by_another_method_is_known() -> None:
    reading = [operation_id(each) for each in ALL if each.method != "GET" and not each.changes]
    verbs = "queues overdue expired finished flow waits get find tally load examine".split()
    assert sorted(reading) == sorted(
        ["POST /v1/session", "DELETE /v1/session", *(f"POST /v1/engine/{verb}" for verb in verbs)]
    )


async def test_a_read_only_server_refuses_every_verb_that_changes_something() -> None:
    """Also where a handler would forget it: the engine behind the request refuses."""
    engine = AuthorizedEngine(await store(), LOCAL_CALLER, AccessControls(read_only=True))
    verbs = [each for each in OPERATIONS if each.path.startswith("/v1/engine/")]
    changing = {each.path.rpartition("/")[2] for each in verbs if each.changes}
    refused = set()
    for verb, call in VERBS.items():
        try:
            await call(engine)
        except ReadOnly:
            refused.add(verb)
    assert refused == changing


async def test_a_read_only_server_refuses_sqs_actions_that_change_something() -> None:
    reading = {each for each in ACTIONS if each.startswith(("Get", "List"))}
    async with filled(ServerSettings(read_only=True)) as server:
        sqs = SqsClient(server.at, ManualClock())
        before = await server.state()
        for action in SAMPLES:
            with case(action):
                reply = await sqs.send(action, json.dumps(SAMPLES[action]).encode())
                is_refused = "--read-only" in reply.body.decode()
                assert is_refused is (action not in reading)
                assert reply.status == 403 or not is_refused
        assert await server.state() == before
