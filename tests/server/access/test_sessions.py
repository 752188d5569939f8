"""Sessions of the dashboard: sign-in, which requests their cookie counts for, and their end."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.core import bounds
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import ConfigError, NotFound, Unauthenticated
from holdfast.ops import tokens as stored_tokens
from holdfast.ops.tokens import SESSION_FORM, SESSIONS_MAX, TOKENS, Token, TokenRequest, Tokens
from holdfast.server.access.admission import ApiCall
from holdfast.server.access.tokens import TokenAuthenticator
from holdfast.server.http import endpoint
from holdfast.server.http.operation import Scope, operation
from holdfast.server.settings import ServerSettings
from tests.server.direct_server import DASHBOARD, DirectServer, direct_server
from tests.server.sample_api import serve

AUTH = ServerSettings(auth=True)
PLAIN: dict[str, Any] = {**DASHBOARD, "scheme": "http", "origin": "http://127.0.0.1:7433"}


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
async def at() -> AsyncIterator[DirectServer]:
    async with direct_server(AUTH) as at:
        yield at


async def store() -> tuple[MemoryEngine, TokenAuthenticator, Clock]:
    engine, clock = MemoryEngine(), Clock()
    await engine.open()
    return engine, TokenAuthenticator(lambda: engine, clock), clock


async def test_a_token_is_exchanged_for_a_session_in_a_cookie(at: DirectServer) -> None:
    token = await at.token("operate", name="ann", prefix="mail.")
    reply = await at.ask("POST", "/v1/session", {"token": token}, **DASHBOARD)
    assert reply.status == 200
    cookie, *rules = reply.headers["set-cookie"].split("; ")
    name, _, text = cookie.partition("=")
    assert name == "__Host-holdfast_session"
    assert SESSION_FORM.fullmatch(text)
    assert set(rules) == {"Max-Age=43200", "Path=/", "HttpOnly", "SameSite=Strict", "Secure"}
    view = await at.ask("GET", "/v1/session", cookie=cookie, **DASHBOARD)
    shown = view.json
    assert reply.json | {"time": ""} == shown | {"time": ""}
    assert (shown["name"], shown["prefix"], shown["signed_in"]) == ("ann", "mail.", True)
    assert shown["scopes"] == ["consume", "known", "observe", "operate", "produce"]
    assert (shown["namespace"], shown["namespaces"]) == ("default", ["default"])
    assert (shown["read_only"], shown["engine"]["name"]) == (False, "memory")
    assert shown["engine"]["traits"]["inspect"] is True
    assert shown["expires_at"] > shown["time"]
    # Neither secret is in an answer, and the session is worth nothing as a token.
    for body in (reply.body, view.body):
        assert text.split("_")[2].encode() not in body
        assert token.split("_")[2].encode() not in body
    assert (await at.ask("GET", "/v1/session", token=text)).status == 401
    as_token = "hf_" + text.partition("_")[2]
    assert (await at.ask("GET", "/v1/session", token=as_token)).status == 401


async def test_a_session_has_the_rights_of_its_token_and_no_more(at: DirectServer) -> None:
    cookie = await at.sign_in(await at.token("observe", name="ann"))
    asked = {"cookie": cookie, **DASHBOARD}
    assert (await at.ask("GET", "/v1/queues", **asked)).status == 200
    refused = await at.ask("POST", "/v1/queues", {"name": "q"}, **asked)
    assert (refused.status, refused.code) == (403, "forbidden")
    assert (await at.ask("GET", "/v1/tokens", **asked)).status == 403
    view = await at.ask("GET", "/v1/queues", cookie=cookie, holdfast_namespace="b", **DASHBOARD)
    assert view.status == 403


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"holdfast_dashboard": None}, id="without the header"),
        pytest.param({"origin": None}, id="without Origin"),
        pytest.param({"origin": "https://evil.example"}, id="of another page"),
        pytest.param({"origin": "http://127.0.0.1:7433"}, id="of the same host without TLS"),
        pytest.param({"origin": "https://127.0.0.1:7434"}, id="of another port"),
        pytest.param({"origin": "null"}, id="of a sandboxed page"),
        pytest.param({"origin": None, "sec_fetch_site": "same-site"}, id="of the same site"),
        pytest.param({"scheme": "http"}, id="over HTTP with the cookie of HTTPS"),
    ],
)
async def test_a_cookie_counts_only_for_the_servers_own_page(
    at: DirectServer, change: dict[str, Any]
) -> None:
    cookie = await at.sign_in(await at.token("admin"))
    for method, path, body in (("GET", "/v1/queues", None), ("POST", "/v1/queues", {"name": "q"})):
        asked = {**DASHBOARD, "cookie": cookie, **change}
        reply = await at.ask(method, path, body, **asked)
        assert (reply.status, reply.code) in ((401, "unauthenticated"), (403, "forbidden"))
    assert "q" not in [view.queue.name for view in await at.engine().queues()]


async def test_a_browser_need_not_name_its_origin_to_read(at: DirectServer) -> None:
    """Browsers send Origin with requests that may change something, and Sec-Fetch-Site always."""
    cookie = await at.sign_in(await at.token("admin"))
    site = {"origin": None, "sec_fetch_site": "same-origin"}
    asked: dict[str, Any] = {**DASHBOARD, "cookie": cookie, **site}
    assert (await at.ask("GET", "/v1/queues", **asked)).status == 200
    assert (await at.ask("POST", "/v1/queues", {"name": "q"}, **asked)).status == 401


async def test_an_origin_that_is_allowed_for_tokens_gets_nothing_by_a_cookie() -> None:
    settings = ServerSettings(auth=True, origins=("https://tools.test",))
    async with direct_server(settings) as at:
        token = await at.token("admin")
        cookie = await at.sign_in(token)
        asked = {**DASHBOARD, "origin": "https://tools.test"}
        assert (await at.ask("GET", "/v1/queues", token=token, **asked)).status == 200
        assert (await at.ask("GET", "/v1/queues", cookie=cookie, **asked)).status == 401
        preflight = await at.ask(
            "OPTIONS",
            "/v1/queues",
            origin="https://tools.test",
            access_control_request_method="GET",
        )
        assert "holdfast-dashboard" not in preflight.headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in preflight.headers


@pytest.mark.parametrize(
    "cookies",
    [
        "",
        "=",
        "__Host-holdfast_session=",
        "__Host-holdfast_session=hfs_x",
        "holdfast_session={text}",
        "{name}={text}; {name}={text}",
        "{name}={text}; {name}=hfs_000000000000_" + "0" * 64,
        "{name}={text}x",
        "x" * 20_000 + "; {name}={text}",
    ],
)
async def test_other_cookies_count_for_nothing(at: DirectServer, cookies: str) -> None:
    cookie = await at.sign_in(await at.token("admin"))
    name, _, text = cookie.partition("=")
    given = cookies.format(name=name, text=text)
    assert (await at.ask("GET", "/v1/queues", cookie=given, **DASHBOARD)).status == 401
    others = f"a=b; {cookie}; theme=dark"
    assert (await at.ask("GET", "/v1/queues", cookie=others, **DASHBOARD)).status == 200


async def test_a_token_in_the_header_wins_over_a_cookie(at: DirectServer) -> None:
    cookie = await at.sign_in(await at.token("admin", name="ann"))
    bob = await at.token("observe", name="bob")
    view = await at.ask("GET", "/v1/session", token=bob, cookie=cookie, **DASHBOARD)
    assert (view.json["name"], view.json["signed_in"]) == ("bob", False)
    wrong = await at.ask("GET", "/v1/session", token="hf_x", cookie=cookie, **DASHBOARD)
    assert wrong.status == 401


async def test_plain_http_on_loopback_is_for_the_servers_own_user(at: DirectServer) -> None:
    token = await at.token("admin", name="ann")
    reply = await at.ask("POST", "/v1/session", {"token": token}, **PLAIN)
    assert reply.status == 200
    cookie, *rules = reply.headers["set-cookie"].split("; ")
    assert cookie.startswith("holdfast_session=hfs_")
    assert set(rules) == {"Max-Age=43200", "Path=/", "HttpOnly", "SameSite=Strict"}
    asked: dict[str, Any] = {"cookie": cookie, **PLAIN}
    assert (await at.ask("GET", "/v1/queues", **asked)).status == 200
    # A request that a proxy on this machine passes on, or that comes from another one.
    assert (await at.ask("GET", "/v1/queues", x_forwarded_for="10.0.0.1", **asked)).status == 401
    assert (await at.ask("GET", "/v1/queues", peer="10.0.0.1", **asked)).status == 401
    # Another user of the machine saw the cookie on a port of its own.
    at.asks_as_own_user = False
    assert (await at.ask("GET", "/v1/queues", **asked)).status == 401
    refused = await at.ask("POST", "/v1/session", {"token": token}, **PLAIN)
    assert refused.status == 403
    assert "--tls-cert" in refused.json["error"]["message"]
    assert "set-cookie" not in refused.headers


@pytest.mark.parametrize("more", [{"peer": "10.0.0.1"}, {"x_forwarded_proto": "https"}])
async def test_plain_http_from_elsewhere_gets_no_cookie(
    at: DirectServer, more: dict[str, str]
) -> None:
    """Only a proxy that is given with --proxy is believed: then the scheme is https."""
    token = await at.token("admin")
    refused = await at.ask("POST", "/v1/session", {"token": token}, **PLAIN, **more)
    assert (refused.status, refused.code) == (403, "forbidden")
    assert "X-Forwarded-Proto" in refused.json["error"]["message"]
    assert "set-cookie" not in refused.headers
    assert await at.server.tokens.all(sessions=True) == await at.server.tokens.all()


@pytest.mark.parametrize(
    "change", [{"holdfast_dashboard": None}, {"origin": None}, {"origin": "https://evil.example"}]
)
async def test_only_the_servers_own_page_can_sign_in(
    at: DirectServer, change: dict[str, Any]
) -> None:
    token = await at.token("admin")
    asked = {**DASHBOARD, **change}
    assert (await at.ask("POST", "/v1/session", {"token": token}, **asked)).status == 403


async def test_a_wrong_token_signs_nobody_in_and_is_not_repeated(
    at: DirectServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = await at.token("admin")
    text = (await at.sign_in(token)).partition("=")[2]
    wrong = token[:-4] + "0000"
    for given in (wrong, "hunter2", text, "hf_" + text.partition("_")[2]):
        reply = await at.ask("POST", "/v1/session", {"token": given}, **DASHBOARD)
        assert (reply.status, reply.code) == (401, "unauthenticated")
        assert "set-cookie" not in reply.headers
        assert given.encode() not in reply.body
    unreadable = await at.ask("POST", "/v1/session", {"token": [wrong]}, **DASHBOARD)
    assert unreadable.status == 400
    assert wrong.encode() not in unreadable.body
    secrets = [each.split("_")[-1] for each in (wrong, token, text)]
    assert not any(secret in caplog.text for secret in secrets)


async def test_signing_out_ends_the_session_at_once(at: DirectServer) -> None:
    token = await at.token("admin")
    cookie = await at.sign_in(token)
    asked = {"cookie": cookie, **DASHBOARD}
    reply = await at.ask("DELETE", "/v1/session", **asked)
    assert (reply.status, reply.body) == (204, b"")
    gone, *rules = reply.headers["set-cookie"].split("; ")
    assert gone == "__Host-holdfast_session="
    assert {"Max-Age=0", "Path=/", "Secure"} <= set(rules)
    assert (await at.ask("GET", "/v1/queues", **asked)).status == 401
    assert await at.server.tokens.all(sessions=True) == await at.server.tokens.all()
    # The token itself stays valid, and signing out again does no harm.
    assert (await at.ask("GET", "/v1/queues", token=token)).status == 200
    assert (await at.ask("DELETE", "/v1/session", **asked)).status == 204


async def test_another_page_cannot_sign_the_user_out(at: DirectServer) -> None:
    cookie = await at.sign_in(await at.token("admin"))
    changes: list[dict[str, Any]] = [{"holdfast_dashboard": None}, {"origin": None}]
    for change in changes:
        await at.ask("DELETE", "/v1/session", cookie=cookie, **{**DASHBOARD, **change})
        assert (await at.ask("GET", "/v1/queues", cookie=cookie, **DASHBOARD)).status == 200


async def test_signing_in_again_ends_the_session_before(at: DirectServer) -> None:
    token = await at.token("admin")
    first = await at.sign_in(token)
    second = await at.sign_in(token, cookie=first)
    assert (await at.ask("GET", "/v1/queues", cookie=first, **DASHBOARD)).status == 401
    assert (await at.ask("GET", "/v1/queues", cookie=second, **DASHBOARD)).status == 200


async def test_revoking_a_token_ends_its_sessions_at_once(at: DirectServer) -> None:
    admin = await at.token("admin", name="admin")
    cookie = await at.sign_in(await at.token("observe", name="ann"))
    asked = {"cookie": cookie, **DASHBOARD}
    assert (await at.ask("GET", "/v1/queues", **asked)).status == 200
    assert (await at.ask("DELETE", "/v1/tokens/ann", token=admin)).status == 200
    assert (await at.ask("GET", "/v1/queues", **asked)).status == 401


async def test_a_token_revoked_elsewhere_ends_its_sessions() -> None:
    engine, here, clock = await store()
    _, parent = await here.create(TokenRequest(name="ann", scopes=("admin",)))
    text, session = await here.create_session(parent)
    assert (await here.authenticate_session(text)).session == session.id
    await Tokens(lambda: engine, clock).revoke("ann")
    here._cache.forget()
    with pytest.raises(Unauthenticated):
        await here.authenticate_session(text)
    with pytest.raises(Unauthenticated):
        await here.require(session.id)


async def test_a_session_expires_with_its_token_and_after_twelve_hours() -> None:
    _, book, clock = await store()
    _, parent = await book.create(TokenRequest(name="a", scopes=("admin",), expires_ms=60_000))
    text, session = await book.create_session(parent)
    assert session.expires_at == parent.expires_at
    clock.now += 59_999
    await book.authenticate_session(text)
    clock.now += 1
    with pytest.raises(Unauthenticated):
        await book.authenticate_session(text)
    _, parent = await book.create(TokenRequest(name="b", scopes=("admin",), expires_ms=None))
    text, session = await book.create_session(parent)
    assert session.expires_at == clock.now + 12 * bounds.HOUR_MS
    clock.now = session.expires_at
    with pytest.raises(Unauthenticated):
        await book.authenticate_session(text)


async def test_sessions_are_few_and_those_that_ended_are_removed() -> None:
    engine, book, clock = await store()
    _, parent = await book.create(TokenRequest(name="a", scopes=("admin",), expires_ms=None))
    _, other = await book.create(TokenRequest(name="b", scopes=("admin",), expires_ms=None))
    kept, _ = await book.create_session(other)
    texts = []
    for _ in range(SESSIONS_MAX + 2):
        clock.now += 1
        texts.append((await book.create_session(parent))[0])
    for text in texts[:2]:
        with pytest.raises(Unauthenticated):
            await book.authenticate_session(text)
    for text in (kept, *texts[2:]):
        await book.authenticate_session(text)
    assert len(await engine.load("token", limit=100)) == 2 + 1 + SESSIONS_MAX
    await book.revoke("a")
    clock.now += 12 * bounds.HOUR_MS
    await book.create_session(other)
    assert len(await engine.load("token", limit=100)) == 1 + 1


async def test_there_is_a_bound_on_all_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_tokens, "SESSIONS_TOTAL_MAX", 1)
    _, book, _ = await store()
    _, parent = await book.create(TokenRequest(name="a", scopes=("admin",)))
    await book.create_session(parent)
    with pytest.raises(ConfigError, match="the maximum"):
        await book.create_session(parent)


async def test_sessions_are_listed_only_if_asked_for_and_found_only_by_id() -> None:
    _, book, clock = await store()
    _, parent = await book.create(TokenRequest(name="a", scopes=("admin",), expires_ms=None))
    clock.now += 1
    _, session = await book.create_session(parent)
    assert [each.id for each in await book.all()] == [parent.id]
    assert [each.parent for each in await book.all(sessions=True)] == ["", parent.id]
    await book.revoke(session.id)
    assert [each.id for each in await book.all(sessions=True)] == [parent.id]
    _, session = await book.create_session(parent)
    clock.now += 12 * bounds.HOUR_MS
    assert [each.id for each in await book.all(sessions=True)] == [parent.id]
    assert (await book.revoke("a")).id == parent.id
    with pytest.raises(NotFound):
        await book.revoke("a")


async def test_a_session_of_an_unreachable_token_is_not_removed() -> None:
    engine, book, clock = await store()
    _, parent = await book.create(TokenRequest(name="a", scopes=("admin",), expires_ms=None))
    _, other = await book.create(TokenRequest(name="b", scopes=("admin",), expires_ms=None))
    _, session = await book.create_session(parent)
    await TOKENS.remove(engine, parent.id)
    partial = Tokens(lambda: engine, clock, lambda: False)
    await partial.create_session(other)
    assert await TOKENS.read(engine, session.id) is not None
    await Tokens(lambda: engine, clock).create_session(other)
    assert await TOKENS.read(engine, session.id) is None


@pytest.mark.parametrize(
    "change",
    [
        {"parent": "nobody"},
        {"scopes": ("admin",)},
        {"expires_at": None},
        {"parent": "000000000001"},
    ],
)
async def test_a_stored_session_that_contradicts_itself_grants_nothing(
    change: dict[str, Any],
) -> None:
    engine, book, clock = await store()
    _, parent = await book.create(TokenRequest(name="a", scopes=("admin",)))
    text, session = await book.create_session(parent)
    # A session cannot be the parent of another one.
    first = Token(
        id="000000000001",
        name="x",
        sha256=session.sha256,
        parent=parent.id,
        expires_at=clock.now + 1_000,
    )
    await TOKENS.create(engine, first.id, first)
    [stored] = [each async for each in TOKENS.read_all(engine) if each.key == session.id]
    fields = {name: getattr(session, name) for name in session.__struct_fields__}
    changed = TOKENS.encode_value(Token(**{**fields, **change}))
    record = type(stored.record)(
        kind="token", key=session.id, value=changed, version=stored.version
    )
    await engine.save([record])
    book._cache.forget()
    with pytest.raises(Unauthenticated):
        await book.authenticate_session(text)


async def test_the_users_own_browser_needs_no_sign_in() -> None:
    async with direct_server(ServerSettings(namespaces=("b",))) as at:
        view = (await at.ask("GET", "/v1/session", **PLAIN)).json
        assert (view["name"], view["signed_in"], view["expires_at"]) == ("local", False, None)
        assert view["namespaces"] == ["b", "default"]
        assert "admin" in view["scopes"]
        # A cookie of another server on this machine, or of a session that ended, does no harm.
        stale = "holdfast_session=hfs_000000000000_" + "0" * 64
        view = (await at.ask("GET", "/v1/session", cookie=stale, **PLAIN)).json
        assert view["name"] == "local"
        cookie = await at.sign_in(await at.token("observe", name="ann"), **PLAIN)
        view = (await at.ask("GET", "/v1/session", cookie=cookie, **PLAIN)).json
        assert (view["name"], view["signed_in"]) == ("ann", True)
        assert (
            await at.ask("POST", "/v1/queues", {"name": "q"}, cookie=cookie, **PLAIN)
        ).status == 403


async def test_a_session_of_a_token_for_all_namespaces_can_switch() -> None:
    async with direct_server(ServerSettings(auth=True, namespaces=("b",))) as at:
        await at.token("observe", name="of-c", namespace="c")
        cookie = await at.sign_in(await at.token("admin", name="all", namespace="*"))
        asked = {"cookie": cookie, **DASHBOARD}
        view = (await at.ask("GET", "/v1/session", **asked)).json
        assert (view["namespace"], view["namespaces"]) == ("default", ["b", "c", "default"])
        view = (await at.ask("GET", "/v1/session", holdfast_namespace="b", **asked)).json
        assert view["namespace"] == "b"
        assert (await at.ask("GET", "/v1/session", holdfast_namespace="x", **asked)).status == 403


async def test_an_act_in_a_session_is_audited_as_the_tokens() -> None:
    async with direct_server(AUTH) as at:
        token = await at.token("admin", name="ann")
        cookie = await at.sign_in(token)
        await at.ask("POST", "/v1/queues", {"name": "q"}, cookie=cookie, **DASHBOARD)
        acts = (await at.ask("GET", "/v1/audit", token=token)).json["acts"]
        assert [each["what"] for each in acts] == ["queue.declare", "session.create"]
        assert {(each["who"], each["token"]) for each in acts} == {("ann", token.split("_")[1])}


@pytest.mark.parametrize("end", ["sign out", "revoke", "expire"])
async def test_streams_end_with_their_session(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a stream that has nothing to send."""
    monkeypatch.setattr(endpoint, "_WATCH_S", 0.0)
    begun = asyncio.Event()
    closed: list[str] = []

    @operation("GET", "/v1/stream", needs=Scope.OBSERVE, streams=True)
    async def stream(call: ApiCall) -> AsyncIterator[bytes]:
        try:
            yield b": hello\n\n"
            begun.set()
            await asyncio.Event().wait()
        finally:
            closed.append(call.caller.name)

    client, server = serve(stream, auth=True)
    await server.app.open()
    try:
        clock = Clock()
        server.tokens = TokenAuthenticator(lambda: server.app.engine, clock)
        _, parent = await server.tokens.create(TokenRequest(name="ann", scopes=("observe",)))
        text, session = await server.tokens.create_session(parent)
        headers = {
            "cookie": f"holdfast_session={text}",
            "holdfast-dashboard": "1",
            "sec-fetch-site": "same-origin",
        }
        asking = asyncio.create_task(client.ask("GET", "/v1/stream", headers=headers))
        await begun.wait()
        if end == "sign out":
            await server.tokens.end_session(session.id)
        elif end == "revoke":
            await server.tokens.revoke("ann")
        else:
            clock.now += 12 * bounds.HOUR_MS
        said = await asyncio.wait_for(asking, 30)
        assert (said.status, said.body) == (200, b": hello\n\n")
        assert client.events[-1] == {"type": "http.response.body", "body": b""}
        assert closed == ["ann"]
    finally:
        await server.app.close()
