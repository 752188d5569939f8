"""Access keys: created, listed, verified and revoked like tokens, and shown by nothing else."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import pytest

from holdfast.app.application import Holdfast
from holdfast.core.model import LeaseRequest, NewJob, Queue, Record
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.wire import CONTENT_TYPE
from holdfast.errors import ConfigError, EngineUnavailable, Forbidden, Unauthenticated
from holdfast.ops.doctor import check_store
from holdfast.ops.records import kinds, scan
from holdfast.ops.tokens import (
    ACCESS_KEY_FORM,
    TOKEN_KIND,
    TOKENS,
    Token,
    TokenRequest,
    Tokens,
    access_key_of,
    is_access_key_id,
    made_token,
    new_access_key,
    token_view,
)
from holdfast.ops.unreadable import find_unreadable
from holdfast.process import wall_ms
from holdfast.server.access.admission import Admission, UnverifiedCaller
from holdfast.server.access.caller import LOCAL_CALLER, Caller, Scope
from holdfast.server.access.peers import LocalUsers
from holdfast.server.access.sigv4 import SignatureRefused, SignedRequest
from holdfast.server.access.tokens import TokenAuthenticator
from holdfast.server.http.request import Headers
from holdfast.server.settings import ServerSettings
from holdfast.server.state import ServerState
from tests.ops.migrate.stores import Stores
from tests.server.direct_server import ALL_OPERATIONS, direct_server
from tests.server.sample_namespace import example_request, fill_namespace, send_example
from tests.server.signed_requests import BODY, NOW, Form, changed, signed

AUTH = ServerSettings(auth=True)
OPEN = ServerSettings()
SECRET_FORM = re.compile(r"[A-Za-z0-9]{40}")
EVERY_FORM: tuple[Form, ...] = ("header", "query")


@dataclass
class AdmissionDriver:
    """An admission whose requests are signed by botocore with a given key."""

    state: ServerState
    admission: Admission
    now: list[int]

    async def key(self, *scopes: str, **more: object) -> tuple[str, str]:
        fields: dict[str, object] = {"name": "k", "scopes": scopes or ("operate",), **more}
        wanted = msgspec.convert(fields | {"aws": True}, TokenRequest)
        secret, token = await self.state.tokens.create(wanted)
        return token.id, secret

    async def identify(
        self, request: SignedRequest, *, peer: str = "127.0.0.1", own: bool = False
    ) -> UnverifiedCaller:
        headers = Headers(list(request.headers))
        return await self.admission.identify(request, headers, peer, is_own_user=own)

    async def caller(
        self, key: tuple[str, str], form: Form = "header", *, own: bool = False
    ) -> Caller:
        request = signed(form, key=key[0], secret=key[1], at_ms=self.now[0])
        named = await self.identify(request, own=own)
        return named.verify(BODY if form == "header" else b"")

    async def refusal(self, request: SignedRequest, *, own: bool = False) -> str:
        with pytest.raises(SignatureRefused) as refused:
            (await self.identify(request, own=own)).verify(BODY)
        return refused.value.aws_code


@asynccontextmanager
async def opened(
    settings: ServerSettings = AUTH, users: LocalUsers | None = None
) -> AsyncIterator[AdmissionDriver]:
    now = [NOW]
    async with Holdfast(engine=MemoryEngine()) as app:
        state = ServerState(
            app=app,
            settings=settings,
            local_users=users,
            make=lambda _: Holdfast(engine=MemoryEngine()),
        )
        state.tokens = TokenAuthenticator(lambda: app.engine, lambda: now[0])
        try:
            yield AdmissionDriver(state, Admission(state, lambda: now[0]), now)
        finally:
            await state.namespaces.close()


async def test_an_access_key_is_a_token_with_a_stored_secret() -> None:
    async with opened() as driver:
        id_, secret = await driver.key("produce", prefix="mail.", expires_ms=5_000)
        assert ACCESS_KEY_FORM.fullmatch(id_)
        assert SECRET_FORM.fullmatch(secret)
        [token] = await driver.state.tokens.all()
        assert (token.id, token.secret, token.sha256) == (id_, secret, "")
        assert (token.scopes, token.prefix) == (("produce",), "mail.")
        assert token.expires_at == NOW + 5_000
        assert secret not in f"{token!r} {token_view(token)!r} {made_token(token, secret)!r}"


def test_keys_are_random() -> None:
    made = [new_access_key() for _ in range(200)]
    assert len({id_ for id_, _ in made}) == len({secret for _, secret in made}) == 200
    assert all(is_access_key_id(id_) and SECRET_FORM.fullmatch(secret) for id_, secret in made)


@pytest.mark.parametrize("form", EVERY_FORM)
async def test_a_signed_request_has_the_rights_of_its_key(form: Form) -> None:
    async with opened() as driver:
        key = await driver.key("produce", "consume", prefix="mail.", name="mailer")
        caller = await driver.caller(key, form)
        assert (caller.name, caller.prefix, caller.token) == ("mailer", "mail.", key[0])
        assert caller.scopes == {"produce", "consume", "known"}
        admit = driver.admission.admit_caller
        call = await admit(caller, (Scope.PRODUCE,), {}, "127.0.0.1", namespace=None)
        await call.app.engine.declare(Queue(name="mail.a"))
        await call.app.engine.declare(Queue(name="other"))
        sent = [NewJob(id=name, queue=name, task="t") for name in ("mail.a", "other")]
        assert [each.code for each in await call.engine.enqueue(sent)] == ["", "forbidden"]
        with pytest.raises(Forbidden):
            await admit(caller, (Scope.OPERATE,), {}, "127.0.0.1", namespace=None)
        with pytest.raises(Forbidden):
            await call.engine.lease(
                LeaseRequest(queues=("other",), limit=1, worker="w", lease_ms=1_000)
            )


async def test_an_expired_or_revoked_key_is_refused() -> None:
    async with opened() as driver:
        expiring = await driver.key(expires_ms=5_000)
        lasting = await driver.key(name="l", expires_ms=None)
        driver.now[0] += 4_999
        call = await driver.admission.admit_caller(
            await driver.caller(expiring), None, {}, None, namespace=None
        )
        driver.now[0] += 1
        request = signed(key=expiring[0], secret=expiring[1], at_ms=driver.now[0])
        assert await driver.refusal(request) == "InvalidClientTokenId"
        with pytest.raises(Unauthenticated, match="during the request"):
            await call.engine.queues()
        await driver.caller(lasting)
        await driver.state.tokens.revoke(lasting[0])
        request = signed(key=lasting[0], secret=lasting[1], at_ms=driver.now[0])
        assert await driver.refusal(request) == "InvalidClientTokenId"


@pytest.mark.parametrize("own", [False, True])
async def test_unknown_keys_and_wrong_secrets(own: bool) -> None:
    """Also where no token is needed: an access key of ours is verified, as a token is."""
    async with opened(OPEN) as driver:
        id_, secret = await driver.key()
        assert (await driver.caller((id_, secret), own=own)).token == id_
        wrong = signed(key=id_, secret=secret[:-1] + "!")
        assert await driver.refusal(wrong, own=own) == "SignatureDoesNotMatch"
        unknown = signed(key=new_access_key()[0], secret=secret)
        assert await driver.refusal(unknown, own=own) == "InvalidClientTokenId"
        driver.now[0] += 16 * 60_000
        assert await driver.refusal(signed(key=id_, secret=secret), own=own) == "RequestExpired"


async def test_the_key_of_another_token_never_signs() -> None:
    async with opened() as driver:
        text, token = await driver.state.tokens.create(TokenRequest(name="t", scopes=("admin",)))
        for key in (token.id, text.replace("_", "-"), "AKIAIOSFODNN7EXAMPLE", "test"):
            request = signed(key=key, secret=token.sha256)
            assert await driver.refusal(request) == "InvalidClientTokenId"


async def test_the_secret_is_not_a_bearer_token() -> None:
    async with direct_server(AUTH) as server:
        wanted = TokenRequest(name="k", scopes=("admin",), aws=True)
        secret, token = await server.server.tokens.create(wanted)
        for text in (secret, token.id, f"hf_{token.id}_{secret}", f"{token.id}:{secret}"):
            reply = await server.ask("GET", "/v1/queues", token=text)
            assert (reply.status, reply.code) == (401, "unauthenticated")


@pytest.mark.parametrize("form", EVERY_FORM)
@pytest.mark.parametrize("path", ["/v1/queues", "/v1/tokens", "/v1/status"])
async def test_a_signature_is_not_valid_for_our_own_api(form: Form, path: str) -> None:
    async with direct_server(AUTH) as server:
        wanted = TokenRequest(name="k", scopes=("admin",), aws=True)
        secret, token = await server.server.tokens.create(wanted)
        url = f"http://127.0.0.1:7433{path}"
        at_ms = wall_ms()
        request = signed(
            form, method="GET", url=url, headers={}, key=token.id, secret=secret, at_ms=at_ms
        )
        headers = {name.decode().replace("-", "_"): v.decode() for name, v in request.headers}
        query = f"?{request.query.decode()}" if request.query else ""
        reply = await server.ask("GET", path + query, **headers)
        assert (reply.status, reply.code) == (401, "unauthenticated")


@pytest.mark.parametrize("settings", [OPEN, ServerSettings(auth=False)])
async def test_local_peers_may_use_any_credentials(settings: ServerSettings) -> None:
    async with opened(settings) as driver:
        own = settings.auth is None
        for request in (
            signed(key="test", secret="test"),
            signed("query", key="AKIAIOSFODNN7EXAMPLE", secret="x", session="FwoGZX"),
            signed(key="test", at_ms=0),
            changed(signed(), authorization="AWS4-HMAC-SHA256 rubbish"),
            changed(signed(), authorization=None),
        ):
            assert (await driver.identify(request, own=own)).verify(b"any") is LOCAL_CALLER
        named = await driver.identify(signed(key="test", region="us-west-2"), own=own)
        assert named.credential is not None
        assert named.credential.region == "us-west-2"


async def test_others_need_a_valid_signature() -> None:
    async with opened(OPEN) as driver:
        key = await driver.key()
        assert (await driver.caller(key)).token == key[0]
        assert await driver.refusal(signed(key="test")) == "InvalidClientTokenId"
        unsigned = changed(signed(), authorization=None)
        assert await driver.refusal(unsigned) == "MissingAuthenticationToken"
        proxied = changed(signed(key="test"), x_forwarded_for="10.0.0.1")
        assert await driver.refusal(proxied, own=True) == "InvalidClientTokenId"
        with pytest.raises(SignatureRefused):
            await driver.identify(signed(key="test"), peer="10.0.0.1", own=True)


async def test_with_auth_on_even_the_own_user_signs() -> None:
    async with opened() as driver:
        assert await driver.refusal(signed(key="test"), own=True) == "InvalidClientTokenId"
        unsigned = changed(signed(), authorization=None)
        assert await driver.refusal(unsigned, own=True) == "MissingAuthenticationToken"


async def test_a_bearer_token_is_accepted_too() -> None:
    async with opened() as driver:
        text, token = await driver.state.tokens.create(TokenRequest(name="t", scopes=("produce",)))
        bearer = changed(signed(), authorization=f"Bearer {text}")
        assert (await driver.identify(bearer)).verify(b"").token == token.id
        with pytest.raises(Unauthenticated):
            await driver.identify(changed(signed(), authorization=f"Bearer {text}x"))


async def test_web_pages_are_refused_before_the_signature() -> None:
    async with opened(OPEN) as driver:
        for headers in (
            {"origin": "https://evil.test"},
            {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"},
            {"host": "evil.test"},
        ):
            with pytest.raises(Forbidden):
                await driver.identify(changed(signed(key="test"), **headers), own=True)


async def test_the_namespace_is_that_of_the_key() -> None:
    async with opened(ServerSettings(auth=True, namespaces=("team",))) as driver:
        admit = driver.admission.admit_caller
        own = await driver.caller(await driver.key(namespace="team"))
        everywhere = await driver.caller(await driver.key(name="all", namespace="*"))
        header = {"holdfast-namespace": "default"}
        assert (await admit(own, None, header, None, namespace=None)).caller.namespace == "team"
        assert (await admit(own, None, {}, None, namespace="team")).caller.namespace == "team"
        with pytest.raises(Forbidden, match="namespace team"):
            await admit(own, None, {}, None, namespace="default")
        for name in ("team", "default"):
            call = await admit(everywhere, None, {}, None, namespace=name)
            assert call.caller.namespace == name
        for name in ("none", "*"):
            with pytest.raises(Forbidden, match="unknown namespace"):
                await admit(everywhere, None, {}, None, namespace=name)


async def test_the_access_key_of_a_system_that_cannot_tell_users_apart() -> None:
    token = "hf_0123456789ab_" + "0" * 64
    key = access_key_of(token)
    assert is_access_key_id(key[0])
    assert SECRET_FORM.fullmatch(key[1])
    assert not {*key} & {*access_key_of(token + "x")}
    async with opened(OPEN, LocalUsers((), token=token)) as driver:
        assert await driver.caller(key) is LOCAL_CALLER
        wrong = signed(key=key[0], secret="x" * 40)
        assert await driver.refusal(wrong) == "SignatureDoesNotMatch"
        assert await driver.refusal(signed(key="test")) == "InvalidClientTokenId"


async def test_while_a_part_of_the_store_is_out_an_unknown_key_may_be_in_it() -> None:
    whole = True
    engine = MemoryEngine()
    await engine.open()
    book = TokenAuthenticator(lambda: engine, lambda: NOW, lambda: whole)
    wanted = TokenRequest(name="k", scopes=("produce",), aws=True)
    secret, token = await book.create(wanted)
    whole = False
    assert (await book.find_access_key(token.id))[0] == secret
    with pytest.raises(EngineUnavailable):
        await book.find_access_key(new_access_key()[0])
    with pytest.raises(SignatureRefused):
        await book.find_access_key("AKIAIOSFODNN7EXAMPLE")
    await engine.close()


KEY_RECORD = Token(id="AKHFAAAABBBBCCCC2345", name="k", secret="s" * 40, scopes=("admin",))


@pytest.mark.parametrize(
    "token",
    [
        msgspec.structs.replace(KEY_RECORD, secret=""),
        msgspec.structs.replace(KEY_RECORD, secret="s" * 39),
        msgspec.structs.replace(KEY_RECORD, secret="s" * 39 + "\n"),
        msgspec.structs.replace(KEY_RECORD, sha256="0" * 64),
        msgspec.structs.replace(KEY_RECORD, sha256="0" * 64, secret=""),
        msgspec.structs.replace(KEY_RECORD, id="0123456789ab"),
        msgspec.structs.replace(KEY_RECORD, id="0123456789ab", sha256="0" * 64),
        msgspec.structs.replace(KEY_RECORD, id="0123456789ab", secret=""),
    ],
)
async def test_a_record_that_contradicts_itself_grants_nothing(token: Token) -> None:
    with pytest.raises(ConfigError) as refused:
        TOKENS.record(token.id, token)
    assert "s" * 39 not in str(refused.value)
    engine = MemoryEngine()
    await engine.open()
    record = Record(kind=TOKEN_KIND, key=token.id, value=msgspec.json.encode(token))
    await engine.save([record])
    book = TokenAuthenticator(lambda: engine, lambda: NOW)
    assert await book.all() == []
    with pytest.raises(SignatureRefused):
        await book.find_access_key(token.id)
    [found] = await find_unreadable(engine)
    assert "s" * 39 not in f"{found}"
    await engine.close()


async def test_no_operation_and_no_verb_shows_the_secret() -> None:
    async with direct_server(AUTH) as server:
        engine = server.engine()
        sample = await fill_namespace(engine, "mark")
        admin = await server.token("admin", "run-commands", namespace="*", name="root")
        body = {"name": "k", "scopes": ["admin"], "aws": True}
        once = {"token": admin, "idempotency_key": "once"}
        made = (await server.ask("POST", "/v1/tokens", body, **once)).json
        assert made["id"] == made["access_key_id"]
        assert "token" not in made
        secret = made["secret_access_key"].encode()
        assert await holders(engine, secret) == [(TOKEN_KIND, made["id"])]
        assert await server.call("load", admin, kind=TOKEN_KIND, limit=100) == []
        for kind in kinds():
            # Kinds that have operations of their own are hidden, others do not have the secret.
            load = msgspec.msgpack.encode({"kind": kind, "limit": 100})
            asked = {"token": admin, "content_type": CONTENT_TYPE}
            reply = await server.ask("POST", "/v1/engine/load", load, **asked)
            assert secret not in reply.body
        for operation in ALL_OPERATIONS:
            example = example_request(operation, sample)
            reply = await send_example(server, operation, example, token=admin)
            assert reply.status < 500
            assert secret not in reply.body, operation.path
        assert await holders(engine, secret) == [(TOKEN_KIND, made["id"])]
        path = f"/v1/records/{TOKEN_KIND}/{made['id']}"
        removed = await server.ask("DELETE", path, token=admin)
        assert removed.status == 422
        assert secret not in removed.body
        revoked = await server.ask("DELETE", f"/v1/tokens/{made['id']}", token=admin)
        assert revoked.status == 200
        assert secret not in revoked.body
        assert await holders(engine, secret) == []


async def holders(engine: Engine, secret: bytes) -> list[tuple[str, str]]:
    """The records that contain a secret."""
    found = [record for kind in kinds() async for record in scan(engine, kind)]
    return [(each.kind, each.key) for each in found if secret in (each.value or b"")]


async def test_no_caller_plants_or_changes_an_access_key() -> None:
    async with direct_server(AUTH) as server:
        admin = await server.token("admin", "run-commands", namespace="*")
        value = msgspec.json.encode(KEY_RECORD)
        record = Record(kind=TOKEN_KIND, key=KEY_RECORD.id, value=value)
        with pytest.raises(Exception, match="403"):
            await server.call("save", token=admin, records=[record])
        with pytest.raises(SignatureRefused):
            await server.server.tokens.find_access_key(KEY_RECORD.id)


async def test_a_key_cannot_have_more_rights_than_the_token_that_creates_it() -> None:
    async with direct_server(AUTH) as server:
        admin = await server.token("admin")
        body = {"name": "k", "scopes": ["run-commands"], "aws": True}
        assert (await server.ask("POST", "/v1/tokens", body, token=admin)).status == 403
        body = {"name": "k", "scopes": ["produce"], "aws": True, "namespace": "other"}
        assert (await server.ask("POST", "/v1/tokens", body, token=admin)).status == 403
        body = {"name": "k", "scopes": ["produce"], "aws": True, "prefix": "mail."}
        made = (await server.ask("POST", "/v1/tokens", body, token=admin)).json
        listed = (await server.ask("GET", "/v1/tokens", token=admin)).json["tokens"]
        assert made["id"] in [each["id"] for each in listed]


async def test_access_keys_are_not_migrated() -> None:
    stores = Stores()
    await stores.old.open()
    await stores.new.open()
    wanted = TokenRequest(name="k", scopes=("admin",), aws=True)
    secret, token = await Tokens(lambda: stores.old, stores.clock.wall_ms).create(wanted)
    assert await holders(stores.old, secret.encode()) == [(TOKEN_KIND, token.id)]
    assert (await stores.move()).is_verified
    assert await holders(stores.new, secret.encode()) == []


async def test_the_doctor_does_not_show_it() -> None:
    engine = MemoryEngine()
    await engine.open()
    wanted = TokenRequest(name="k", scopes=("admin",), aws=True)
    secret, _ = await Tokens(lambda: engine, lambda: NOW).create(wanted)
    assert secret not in repr(await check_store(engine, deep=True))
    await engine.close()
