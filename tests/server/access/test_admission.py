"""Admission: host, origin, token, scope and namespace."""

import logging
from typing import Any

import pytest

from holdfast.conformance.contract.cases import case
from holdfast.core import bounds
from holdfast.server.access.caller import GRANTABLE, Scope, with_implied
from holdfast.server.http.operation import Operation
from holdfast.server.settings import ServerSettings
from tests.server.direct_server import (
    ALL_OPERATIONS,
    SCOPED_OPERATIONS,
    DirectReply,
    DirectServer,
    direct_server,
    operation_id,
    path_of,
)

AUTH = ServerSettings(auth=True)
OUTSIDE = ServerSettings(host="0.0.0.0", auth=True, hosts=("queue.example.com",))
NAMES = dict.fromkeys(("queue", "id", "name", "named", "whose", "kind", "key"), "x")


async def knock(at: DirectServer, operation: Operation, **more: Any) -> DirectReply:
    return await at.ask(operation.method, path_of(operation, NAMES), **more)


async def test_every_route_needs_a_valid_token() -> None:
    async with direct_server(AUTH) as at:
        wall = at.server.tokens._wall_ms
        good = await at.token("admin", "run-commands", name="good")
        old = await at.token("admin", "run-commands", name="old", expires_ms=bounds.SECOND_MS)
        gone = await at.token("admin", "run-commands", name="gone")
        await at.server.tokens.revoke("gone")
        at.server.tokens._wall_ms = lambda: wall() + 2 * bounds.SECOND_MS
        forged = good[:-1] + ("0" if good[-1] != "0" else "1")
        crossed = f"hf_{good.split('_')[1]}_{old.split('_')[2]}"
        bad = (None, "", "x", forged, crossed, old, gone, good[3:], good.upper())
        for operation in SCOPED_OPERATIONS:
            with case(operation_id(operation)):
                for token in bad:
                    reply = await knock(at, operation, token=token)
                    assert (reply.status, reply.code) == (401, "unauthenticated"), token
                    assert reply.headers["www-authenticate"].startswith("Bearer")
                for way in (f"Basic {good}", good, f"Token {good}"):
                    reply = await knock(at, operation, authorization=way)
                    assert (reply.status, reply.code) == (401, "unauthenticated"), way
                assert (await knock(at, operation, token=good)).status not in (401, 403)


async def test_every_route_needs_its_scope() -> None:
    async with direct_server(AUTH) as at:
        tokens = {scope: await at.token(scope, name=scope) for scope in GRANTABLE}
        for operation in SCOPED_OPERATIONS:
            assert operation.needs is not None
            for scope, token in tokens.items():
                with case(operation_id(operation), scope):
                    reply = await knock(at, operation, token=token)
                    if not with_implied([scope]).isdisjoint(operation.needs):
                        assert reply.status != 401
                    else:
                        assert (reply.status, reply.code) == (403, "forbidden")


def test_scopes_imply_lower_ones_but_never_run_commands() -> None:
    operate = {"known", "produce", "consume", "observe", "operate"}
    assert with_implied(["admin"]) == {*operate, "admin"}
    assert with_implied(["operate"]) == operate
    assert with_implied(["observe"]) == {"known", "observe"}
    assert with_implied(["run-commands"]) == {"run-commands"}
    assert with_implied(["produce", "run-commands"]) == {"known", "produce", "run-commands"}
    assert with_implied(["known", "root", "*"]) == set()
    assert Scope.KNOWN not in GRANTABLE


READS = frozenset(
    f"POST /v1/engine/{verb}"
    for verb in ("queues", "flow", "waits", "get", "find", "tally", "load", "examine")
)
"""The verbs of the engine that change nothing: their arguments are in the body."""
ADMINS = frozenset(("GET /v1/tokens", "GET /v1/audit", "GET /v1/quotas"))


def test_an_observer_reads_what_an_operator_reads_and_changes_nothing() -> None:
    observer = with_implied(["observe"])
    for operation in SCOPED_OPERATIONS:
        named = operation_id(operation)
        reads = operation.method == "GET" or named in READS
        assert operation.needs is not None
        admitted = not observer.isdisjoint(operation.needs)
        assert admitted == (reads and named not in ADMINS), named


async def test_a_foreign_host_is_refused_on_every_route() -> None:
    hosts = (
        "evil.example.com",
        "evil.example.com:7433",
        "127.0.0.1.evil.example",
        "",
        None,
        "8.8.8.8",
    )
    origins = ("http://evil.example.com", "null", "http://localhost:3000", "file://")
    across = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}
    async with direct_server() as at:
        for operation in ALL_OPERATIONS:
            with case(operation_id(operation)):
                for host in hosts:
                    reply = await knock(at, operation, host=host)
                    assert (reply.status, reply.code) == (403, "forbidden"), host
                for origin in origins:
                    reply = await knock(at, operation, origin=origin)
                    assert (reply.status, reply.code) == (403, "forbidden"), origin
                    assert "access-control-allow-origin" not in reply.headers
                reply = await knock(at, operation, **across)
                assert (reply.status, reply.code) == (403, "forbidden")


async def test_a_link_on_another_page_may_read_and_a_form_may_not_write() -> None:
    across = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    async with direct_server() as at:
        assert (await at.ask("GET", "/v1/queues", **across)).status == 200
        assert (await at.ask("HEAD", "/v1/queues", **across)).status == 200
        reply = await at.ask("POST", "/v1/queues/default/pause", b"{}", **across)
        assert (reply.status, reply.code) == (403, "forbidden")


@pytest.mark.parametrize(
    "host", ["127.0.0.1:7433", "localhost", "LOCALHOST:7433", "[::1]:7433", "127.8.8.8"]
)
async def test_loopback_hosts_are_accepted(host: str) -> None:
    async with direct_server() as at:
        assert (await at.ask("GET", "/v1/queues", host=host)).status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("queue.example.com", 200),
        ("Queue.Example.Com:443", 200),
        ("10.0.0.7:7433", 200),
        ("[2001:db8::7]:7433", 200),
        ("localhost", 200),
        # A probe that speaks HTTP/1.0. Pages always send one.
        (None, 200),
        ("", 403),
        ("other.example.com", 403),
        ("10.0.0.7.example.com", 403),
        ("queue.example.com.evil.example", 403),
    ],
)
async def test_on_other_addresses_host_names_must_be_allowed(host: str | None, status: int) -> None:
    async with direct_server(OUTSIDE) as at:
        token = await at.token("operate")
        assert (await at.ask("GET", "/v1/queues", host=host, token=token)).status == status


async def test_the_same_origin_is_accepted() -> None:
    async with direct_server() as at:
        mine = {"host": "localhost:7433", "origin": "http://localhost:7433"}
        reply = await at.ask("GET", "/v1/queues", **mine)
        assert reply.status == 200
        assert "access-control-allow-origin" not in reply.headers
        navigated = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
        assert (await at.ask("GET", "/v1/openapi.json", **navigated)).status == 200


async def test_an_allowed_origin_gets_cors_headers() -> None:
    page = "https://board.example.com"
    async with direct_server(ServerSettings(origins=(page,))) as at:
        asked = {"origin": page, "access_control_request_method": "POST"}
        reply = await at.ask("OPTIONS", "/v1/lease", **asked)
        assert reply.status == 204
        assert reply.headers["access-control-allow-origin"] == page
        assert "authorization" in reply.headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in reply.headers
        reply = await at.ask("GET", "/v1/queues", origin=page)
        assert (reply.status, reply.headers["vary"]) == (200, "origin")
        assert reply.headers["access-control-allow-origin"] == page
        for other in ("https://board.example.com.evil.example", "http://board.example.com", "null"):
            asked["origin"] = other
            reply = await at.ask("OPTIONS", "/v1/lease", **asked)
            assert reply.status != 204
            assert "access-control-allow-origin" not in reply.headers
            assert (await at.ask("GET", "/v1/queues", origin=other)).status == 403


async def test_a_foreign_caller_needs_a_token_in_any_configuration() -> None:
    async with direct_server() as at:
        assert (await at.ask("GET", "/v1/queues", peer="127.0.0.1")).status == 200
        assert (await at.ask("GET", "/v1/queues", peer="::1")).status == 200
        for peer in ("10.0.0.1", "::ffff:10.0.0.1", "192.168.1.2", "", "localhost.evil.example"):
            assert (await at.ask("GET", "/v1/queues", peer=peer)).status == 401, peer
        for header in ("x_forwarded_for", "forwarded", "x_real_ip"):
            reply = await at.ask("GET", "/v1/queues", **{header: "127.0.0.1"})
            assert reply.status == 401, header


@pytest.mark.parametrize(
    ("settings", "is_open"),
    [
        (ServerSettings(), True),
        (ServerSettings(host="::1"), True),
        (ServerSettings(host="localhost"), True),
        (ServerSettings(auth=False), True),
        (ServerSettings(auth=True), False),
        (ServerSettings(host="0.0.0.0"), False),
        (ServerSettings(host="::"), False),
        (ServerSettings(host="0.0.0.0", auth=False), False),
        (ServerSettings(host="192.168.1.2", auth=False), False),
        (ServerSettings(proxies=("127.0.0.1",)), False),
    ],
    ids=str,
)
async def test_only_a_loopback_address_is_open(settings: ServerSettings, is_open: bool) -> None:
    async with direct_server(settings) as at:
        assert (await at.ask("GET", "/v1/queues")).status == (200 if is_open else 401)


async def test_a_wrong_token_is_refused_where_none_is_needed() -> None:
    async with direct_server() as at:
        assert (await at.ask("GET", "/v1/queues", token="hf_nonsense")).status == 401
        assert (await at.ask("GET", "/healthz", token="hf_nonsense")).status == 401
        token = await at.token("produce")
        assert (await at.ask("GET", "/v1/queues", token=token)).status == 403


async def test_a_token_in_a_query_or_a_cookie_is_ignored() -> None:
    async with direct_server(AUTH) as at:
        token = await at.token("admin")
        for path in (f"/v1/queues?token={token}", f"/v1/queues?access_token={token}"):
            assert (await at.ask("GET", path)).status == 401
        assert (await at.ask("GET", "/v1/queues", cookie=f"token={token}")).status == 401


async def test_secrets_appear_in_no_error_or_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with direct_server(AUTH) as at:
            token = await at.token("produce", "operate")
            secret = token.split("_")[2]
            seen = [repr(await at.server.tokens.all()), repr(at.server.tokens.__dict__)]
            caller = await at.server.tokens.authenticate(token)
            seen.append(repr(caller))
            for given in (token, token + "0", token[:-1], f"{token}\x01"):
                for path in ("/v1/queues", "/v1/tokens", "/metrics", "/v1/nothing", "/v1/audit"):
                    reply = await at.ask("GET", path, token=given)
                    seen.append(str(reply))
            reply = await at.ask("POST", "/v1/lease", b"{", token=token)
            seen.append(str(reply))
    assert secret not in "\n".join(seen)
    assert secret not in caplog.text
