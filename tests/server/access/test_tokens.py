"""Tokens: created, stored, authenticated and revoked."""

import asyncio
import hashlib
import hmac
import json
import time
from typing import Any

import msgspec
import pytest

from holdfast.core import bounds
from holdfast.core.model import Lease, LeaseRequest, Record
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import (
    ConfigError,
    EngineUnavailable,
    NotFound,
    Unauthenticated,
)
from holdfast.ops.tokens import TOKEN_FORM, TOKEN_KIND, TokenRequest
from holdfast.server.access import quotas, tokens
from holdfast.server.access.caller import with_implied
from holdfast.server.access.tokens import TokenAuthenticator
from holdfast.server.settings import ServerSettings
from tests.server.direct_server import DirectServer, direct_server

AUTH = ServerSettings(auth=True)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


class Counted(MemoryEngine):
    """Counts how often records are read; `broken` answers nothing, `held` waits."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.broken = False
        self.held: asyncio.Event | None = None
        self.reading = asyncio.Event()

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        self.reads += 1
        found = await super().load(kind, after=after, limit=limit)
        self.reading.set()
        if self.held is not None:
            await self.held.wait()
        if self.broken:
            raise EngineUnavailable("away")
        return found


class Awaited(MemoryEngine):
    """An engine that signals when a lease waits."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        self.asked.set()
        return await super().lease(request)


async def opened() -> tuple[Counted, TokenAuthenticator, Clock]:
    engine, clock = Counted(), Clock()
    await engine.open()
    return engine, TokenAuthenticator(lambda: engine, clock), clock


async def made(book: TokenAuthenticator, *scopes: str, **more: Any) -> str:
    text, _ = await book.create(TokenRequest(name=more.pop("name", "t"), scopes=scopes, **more))
    return text


async def test_a_token_is_256_random_bits_of_which_only_a_hash_is_kept() -> None:
    engine, book, _ = await opened()
    text, token = await book.create(TokenRequest(name="ci", scopes=("produce",)))
    form = TOKEN_FORM.fullmatch(text)
    assert form is not None
    id_, secret = form.groups()
    assert (token.id, len(bytes.fromhex(secret))) == (id_, 32)
    [record] = await engine.load(TOKEN_KIND, limit=10)
    assert record.value is not None
    assert secret.encode() not in record.value
    assert json.loads(record.value)["sha256"] == hashlib.sha256(secret.encode()).hexdigest()
    assert secret not in repr(token)
    assert token.sha256 not in repr(token)
    others = {(await made(book, "produce")).split("_")[2] for _ in range(20)}
    assert len(others) == 20


async def test_a_token_authenticates_its_caller() -> None:
    _, book, _ = await opened()
    text = await made(book, "operate", "run-commands", name="ops", namespace="b", prefix="mail.")
    caller = await book.authenticate(text)
    assert (caller.name, caller.namespace, caller.prefix) == ("ops", "b", "mail.")
    assert caller.scopes == with_implied(["operate", "run-commands"])
    assert caller.token == text.split("_")[1]


async def test_hashes_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known or not, whole or not: one comparison of as many bytes."""
    compared: list[tuple[int, int]] = []

    def compare(first: bytes, second: bytes) -> bool:
        compared.append((len(first), len(second)))
        return hmac.compare_digest(first, second)

    class Hmac:
        compare_digest = staticmethod(compare)

    monkeypatch.setattr(tokens, "hmac", Hmac)
    _, book, _ = await opened()
    text = await made(book, "produce")
    await book.authenticate(text)
    forged = text[:-1] + ("0" if text[-1] != "0" else "1")
    for wrong in (
        forged,
        text[:-1] + "g",
        "hf_000000000000_" + "0" * 64,
        "",
        "x" * 10_000,
        text[:20],
    ):
        with pytest.raises(Unauthenticated):
            await book.authenticate(wrong)
    assert compared == [(32, 32)] * 7


async def test_a_token_that_another_process_made_is_known_at_once() -> None:
    engine, book, clock = await opened()
    known = await made(book, "produce")
    await book.authenticate(known)
    new = await made(TokenAuthenticator(lambda: engine, clock), "produce")
    reads = engine.reads
    await book.authenticate(known)
    assert engine.reads == reads
    await book.authenticate(new)


async def test_unknown_tokens_cause_at_most_ten_reads_a_second() -> None:
    engine, book, _ = await opened()
    text = await made(book, "produce")
    before = engine.reads
    await book.authenticate(text)
    one_read = engine.reads - before
    began_at, reads = time.monotonic(), engine.reads
    for _ in range(3):
        unknown = (book.authenticate("hf_000000000000_" + "0" * 64) for _ in range(20))
        found = await asyncio.gather(*unknown, return_exceptions=True)
        assert {type(each) for each in found} == {Unauthenticated}
    took = time.monotonic() - began_at
    assert 1 <= (engine.reads - reads) / one_read <= 1 + took / 0.1


async def test_it_expires_by_the_clock() -> None:
    _, book, clock = await opened()
    text = await made(book, "produce", expires_ms=5_000)
    for_ever = await made(book, "produce", expires_ms=None)
    clock.now += 4_999
    caller = await book.authenticate(text)
    clock.now += 1
    for question in (book.authenticate(text), book.require(caller.token)):
        with pytest.raises(Unauthenticated):
            await question
    clock.now += bounds.DELAY_MS_MAX
    await book.authenticate(for_ever)


async def test_a_revoked_token_is_refused_at_once() -> None:
    _, book, _ = await opened()
    text, other = await made(book, "produce", name="a"), await made(book, "produce", name="b")
    caller = await book.authenticate(text)
    assert (await book.revoke(caller.token)).name == "a"
    for question in (book.authenticate(text), book.require(caller.token)):
        with pytest.raises(Unauthenticated):
            await question
    await book.authenticate(other)
    with pytest.raises(NotFound):
        await book.revoke(caller.token)


async def test_a_read_before_the_revocation_does_not_restore_the_token() -> None:
    engine, book, _ = await opened()
    text = await made(book, "produce")
    engine.held = asyncio.Event()
    engine.reading.clear()
    early = asyncio.create_task(book.authenticate(text))
    await engine.reading.wait()
    held, engine.held = engine.held, None
    await book.revoke(text.split("_")[1])
    held.set()
    # Not even an earlier caller.
    with pytest.raises(Unauthenticated):
        await early
    with pytest.raises(Unauthenticated):
        await book.authenticate(text)


async def test_other_servers_refuse_a_revoked_token_within_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]

    class Time:
        monotonic = staticmethod(lambda: now[0])

    monkeypatch.setattr(quotas, "time", Time)
    engine, here, clock = await opened()
    there = TokenAuthenticator(lambda: engine, clock)
    text = await made(here, "produce")
    await there.authenticate(text)
    await here.revoke("t")
    now[0] += 0.99
    await there.authenticate(text)
    now[0] += 0.01
    with pytest.raises(Unauthenticated):
        await there.authenticate(text)


async def test_requests_share_one_read_and_all_fail_with_it() -> None:
    engine, book, _ = await opened()
    text = await made(book, "produce")
    engine.reads = 0
    await asyncio.gather(*(book.authenticate(text) for _ in range(100)))
    assert engine.reads == 1
    book._cache.forget()
    engine.broken = True
    answers = await asyncio.gather(
        *(book.authenticate(text) for _ in range(10)), return_exceptions=True
    )
    assert all(isinstance(each, EngineUnavailable) for each in answers)
    engine.broken = False
    await book.authenticate(text)


async def test_cancelling_one_request_does_not_cancel_the_shared_read() -> None:
    engine, book, _ = await opened()
    text = await made(book, "produce")
    engine.held = asyncio.Event()
    engine.reading.clear()
    leaving = asyncio.create_task(book.authenticate(text))
    staying = asyncio.create_task(book.authenticate(text))
    await engine.reading.wait()
    leaving.cancel()
    await asyncio.wait([leaving])
    engine.held.set()
    assert (await staying).name == "t"


@pytest.mark.parametrize(
    "damage",
    [b"", b"{}", b"[]", b'{"id":"x","name":"n","sha256":""}', b"\xff"],
)
async def test_a_broken_record_authenticates_nobody(damage: bytes) -> None:
    engine, book, _ = await opened()
    text = await made(book, "admin")
    id_ = text.split("_")[1]
    await engine.save([Record(kind=TOKEN_KIND, key=id_, value=damage, version=1)])
    book._cache.forget()
    with pytest.raises(Unauthenticated):
        await book.authenticate(text)
    assert await book.all() == []


async def test_a_copied_record_authenticates_nobody() -> None:
    engine, book, _ = await opened()
    text = await made(book, "admin")
    [record] = await engine.load(TOKEN_KIND, limit=1)
    await engine.save([msgspec.structs.replace(record, key="000000000000", version=0)])
    book._cache.forget()
    with pytest.raises(Unauthenticated):
        await book.authenticate(f"hf_000000000000_{text.split('_')[2]}")
    await book.authenticate(text)
    await book.revoke(record.key)
    with pytest.raises(Unauthenticated):
        await book.authenticate(text)


@pytest.mark.parametrize(
    "wanted",
    [
        {"scopes": ()},
        {"scopes": ("root",)},
        {"scopes": ("known",)},
        {"name": ""},
        {"name": "a\nb"},
        {"name": " a"},
        {"namespace": "a b"},
        {"namespace": ""},
        {"prefix": "a*"},
        {"prefix": "a" * 71},
        {"prefix": "mail.", "scopes": ("admin",)},
        {"expires_ms": 0},
        {"expires_ms": -1},
    ],
    ids=str,
)
async def test_invalid_values_are_refused(wanted: dict[str, Any]) -> None:
    engine, book, _ = await opened()
    with pytest.raises(ConfigError):
        await book.create(TokenRequest(**{"name": "t", "scopes": ("produce",), **wanted}))
    assert await engine.load(TOKEN_KIND, limit=10) == []


async def test_a_token_with_an_ambiguous_name_is_revoked_by_id() -> None:
    _, book, _ = await opened()
    first, second = await made(book, "produce"), await made(book, "produce")
    with pytest.raises(ConfigError, match="several"):
        await book.revoke("t")
    await book.revoke(first.split("_")[1])
    await book.authenticate(second)
    await book.revoke("t")
    assert await book.all() == []


async def rest(at: DirectServer, method: str, path: str, token: str, body: Any = None) -> Any:
    reply = await at.ask(method, path, body, token=token)
    return reply.json if reply.status < 300 else (reply.status, reply.code)


async def test_an_admin_creates_lists_and_revokes_tokens_over_http() -> None:
    async with direct_server(AUTH) as at:
        admin = await at.token("admin", name="root")
        made = await rest(at, "POST", "/v1/tokens", admin, {"name": "ci", "scopes": ["produce"]})
        assert (made["name"], made["namespace"], made["by"]) == ("ci", "default", "root")
        body = {"jobs": [{"task": "t"}]}
        new = made["token"]
        assert (await at.ask("POST", "/v1/queues/default/jobs", body, token=new)).status == 201
        listed = (await rest(at, "GET", "/v1/tokens", admin))["tokens"]
        assert {each["name"] for each in listed} == {"root", "ci"}
        assert "token" not in listed[0]
        assert new.split("_")[2] not in json.dumps(listed)
        assert "sha256" not in json.dumps(listed)
        gone = await rest(at, "DELETE", f"/v1/tokens/{made['id']}", admin)
        assert gone["name"] == "ci"
        assert (await at.ask("POST", "/v1/queues/default/jobs", body, token=new)).status == 401
        assert await rest(at, "DELETE", "/v1/tokens/ci", admin) == (404, "not_found")


async def test_a_token_cannot_create_one_with_more_rights() -> None:
    async with direct_server(AUTH) as at:
        admin = await at.token("admin", name="root", namespace="a")
        body: dict[str, Any] = {"name": "x", "scopes": ["admin", "run-commands"]}
        forbidden = (403, "forbidden")
        assert await rest(at, "POST", "/v1/tokens", admin, body) == forbidden
        body["scopes"] = ["admin"]
        for namespace in ("*", "default", "b"):
            body["namespace"] = namespace
            assert await rest(at, "POST", "/v1/tokens", admin, body) == forbidden, namespace
        body["namespace"] = "a"
        assert (await rest(at, "POST", "/v1/tokens", admin, body))["namespace"] == "a"
        everywhere = await at.token("admin", "run-commands", name="all", namespace="*")
        body |= {"namespace": "*", "scopes": ["run-commands"]}
        assert (await rest(at, "POST", "/v1/tokens", everywhere, body))["namespace"] == "*"
        names = [each["name"] for each in (await rest(at, "GET", "/v1/tokens", admin))["tokens"]]
        assert sorted(names) == ["root", "x"]
        assert len((await rest(at, "GET", "/v1/tokens", everywhere))["tokens"]) == 4
        assert await rest(at, "DELETE", "/v1/tokens/all", admin) == (404, "not_found")


async def test_a_local_caller_without_a_token_creates_no_tokens() -> None:
    async with direct_server() as at:
        body = {"name": "x", "scopes": ["produce"]}
        for method, path, given in (
            ("POST", "/v1/tokens", body),
            ("GET", "/v1/tokens", None),
            ("DELETE", "/v1/tokens/x", None),
        ):
            assert (await at.ask(method, path, given)).status == 403
        assert await at.server.tokens.all() == []


async def test_an_answer_with_a_secret_is_not_stored_for_its_key() -> None:
    async with direct_server(AUTH) as at:
        admin = await at.token("admin")
        body = {"name": "x", "scopes": ["produce"]}
        reply = await at.ask("POST", "/v1/tokens", body, token=admin, idempotency_key="k")
        secret = reply.json["token"].split("_")[2].encode()
        assert isinstance(at.engine(), MemoryEngine)
        for kind, kept_ in at.engine()._records.items():  # type: ignore[attr-defined]
            for record, _ in kept_.values():
                assert secret not in (record.value or b""), kind


async def test_a_waiting_lease_is_released_when_its_token_is_revoked() -> None:
    engine = Awaited()
    async with direct_server(AUTH, default=engine) as at:
        token = await at.token("consume", name="w")
        body = {"queues": ["default"], "wait": 20}
        waiting = asyncio.create_task(at.ask("POST", "/v1/lease", body, token=token))
        await engine.asked.wait()
        await at.server.tokens.revoke("w")
        other = await at.token("produce")
        jobs = {"jobs": [{"task": "t", "id": "j1"}]}
        assert (await at.ask("POST", "/v1/queues/default/jobs", jobs, token=other)).status == 201
        reply = await waiting
        assert (reply.status, reply.code) == (401, "unauthenticated")
        job = await engine.get("j1")
        assert job is not None
        assert (job.state, job.attempt) == ("waiting", 0)
