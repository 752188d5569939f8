"""Tokens and quotas while a partition is out: valid callers can retry, revoked ones stay out."""

import pytest

from holdfast.core.model import NewJob, Record
from holdfast.engines.base import Saved
from holdfast.engines.extras import PartitionView
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable, NotFound, QuotaExceeded, Unauthenticated
from holdfast.ops.quotas import QUOTA_KIND, Quota
from holdfast.ops.tokens import TOKEN_KIND, TokenRequest
from holdfast.process import wall_ms
from holdfast.server.access.quotas import QuotaEnforcer
from holdfast.server.access.tokens import TokenAuthenticator
from holdfast.server.settings import ServerSettings
from tests.server.direct_server import direct_server


class Parted(MemoryEngine):
    """Records whose keys are in `away` are in a part that can be neither read nor written."""

    away: frozenset[str] = frozenset()

    @property
    def is_whole(self) -> bool:
        return not self.away

    def partitions(self) -> list[PartitionView]:
        out_ms = None if self.is_whole else 1_000
        return [PartitionView(name="a", waiting=0, out_ms=out_ms)]

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        found = await super().load(kind, after=after, limit=limit)
        return [record for record in found if record.key not in self.away]


async def opened() -> tuple[Parted, TokenAuthenticator]:
    engine = Parted()
    await engine.open()
    return engine, tokens_of(engine)


def tokens_of(engine: Parted) -> TokenAuthenticator:
    return TokenAuthenticator(lambda: engine, wall_ms, lambda: engine.is_whole)


async def made(book: TokenAuthenticator, name: str = "t") -> tuple[str, str]:
    """A token's text and id, known to the server."""
    text, token = await book.create(TokenRequest(name=name, scopes=("produce",)))
    await book.authenticate(text)
    return text, token.id


def look_again(book: TokenAuthenticator) -> None:
    book._cache.forget()


async def test_a_token_in_an_unavailable_partition_stays_valid() -> None:
    engine, book = await opened()
    text, id_ = await made(book)
    engine.away = frozenset({id_})
    look_again(book)
    assert (await book.authenticate(text)).token == id_
    await book.require(id_)
    with pytest.raises(Unauthenticated):
        await book.authenticate(text[:-1] + ("0" if text[-1] != "0" else "1"))


async def test_an_unknown_token_gets_503_while_a_partition_is_out() -> None:
    engine, book = await opened()
    text, id_ = await made(book)
    engine.away = frozenset({id_})
    restarted = tokens_of(engine)
    with pytest.raises(EngineUnavailable):
        await restarted.authenticate(text)
    with pytest.raises(Unauthenticated):
        await restarted.authenticate("nonsense")
    engine.away = frozenset()
    look_again(restarted)
    assert (await restarted.authenticate(text)).token == id_


async def test_an_unfinished_revocation_is_refused_but_applies_here() -> None:
    engine, book = await opened()
    text, id_ = await made(book)
    engine.away = frozenset({id_})
    look_again(book)
    with pytest.raises(EngineUnavailable, match="this server refuses it"):
        await book.revoke("t")
    with pytest.raises(Unauthenticated):
        await book.authenticate(text)
    engine.away = frozenset()
    look_again(book)
    with pytest.raises(Unauthenticated):
        await book.authenticate(text)
    await book.revoke(id_)
    assert await engine.load(TOKEN_KIND, limit=10) == []


async def test_an_unknown_name_is_503_while_a_partition_is_out() -> None:
    engine, book = await opened()
    engine.away = frozenset({"elsewhere"})
    with pytest.raises(EngineUnavailable):
        await book.revoke("nobody")
    engine.away = frozenset()
    with pytest.raises(NotFound):
        await book.revoke("nobody")


async def test_a_revoked_token_stays_revoked_when_a_partition_goes_out() -> None:
    engine, book = await opened()
    text, id_ = await made(book)
    await book.revoke(id_)
    engine.away = frozenset({"something"})
    look_again(book)
    with pytest.raises(Unauthenticated):
        await book.authenticate(text)


async def test_a_quota_in_an_unavailable_partition_still_applies() -> None:
    engine = Parted()
    await engine.open()
    quotas = QuotaEnforcer(lambda: engine, is_whole=lambda: engine.is_whole)
    await quotas.put("namespace", Quota(depth=1))
    quotas.ended(await quotas.charge([NewJob(id="a", task="t")]))
    [known] = await engine.load(QUOTA_KIND, limit=10)
    engine.away = frozenset({known.key})
    quotas._cache.forget()
    with pytest.raises(QuotaExceeded):
        await quotas.charge([NewJob(id=str(n), task="t") for n in range(2)])
    engine.away = frozenset()
    assert await engine.save([Record(kind=QUOTA_KIND, key=known.key, value=None, version=1)]) == [
        Saved.SAVED
    ]
    quotas._cache.forget()
    await quotas.charge([NewJob(id=str(n), task="t") for n in range(2)])


async def test_a_server_knows_whether_its_store_is_fully_readable() -> None:
    engine = Parted()
    async with direct_server(ServerSettings(auth=True), default=engine) as at:
        token = await at.token("operate")
        assert (await at.ask("GET", "/v1/queues", token=token)).status == 200
        engine.away = frozenset({token.split("_")[1]})
        look_again(at.server.tokens)
        assert (await at.ask("GET", "/v1/queues", token=token)).status == 200
        stranger = f"hf_{'0' * 12}_{'0' * 64}"
        assert (await at.ask("GET", "/v1/queues", token=stranger)).status == 503
        engine.away = frozenset()
        assert (await at.ask("GET", "/v1/queues", token=stranger)).status == 401
