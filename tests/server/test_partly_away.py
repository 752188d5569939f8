"""What is known of callers while a part of the store is away: nobody is turned away for good, and
nobody who was revoked is let in."""

import pytest

from holdfast.core.model import NewJob, Record
from holdfast.engines.base import Saved
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.partitioned.partition import PartitionView
from holdfast.errors import EngineUnavailable, NotFound, QuotaExceeded, Unauthenticated
from holdfast.server.quotas import KIND as QUOTA_KIND
from holdfast.server.quotas import Quota, Quotas
from holdfast.server.settings import ServerSettings
from holdfast.server.tokens import KIND, Tokens, Wanted
from holdfast.upkeep import wall_ms
from tests.server.house import house


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


async def opened() -> tuple[Parted, Tokens]:
    engine = Parted()
    await engine.open()
    return engine, tokens_of(engine)


def tokens_of(engine: Parted) -> Tokens:
    return Tokens(lambda: engine, wall_ms, lambda: engine.is_whole)


async def made(book: Tokens, name: str = "t") -> tuple[str, str]:
    """A token's text and id, known to the server."""
    text, token = await book.create(Wanted(name=name, scopes=("produce",)))
    await book.authenticate(text)
    return text, token.id


def look_again(book: Tokens) -> None:
    book._kept.forget()


async def test_a_token_in_the_part_that_is_away_is_good_still() -> None:
    engine, book = await opened()
    text, id_ = await made(book)
    engine.away = frozenset({id_})
    look_again(book)
    assert (await book.authenticate(text)).token == id_
    await book.require(id_)
    with pytest.raises(Unauthenticated):
        await book.authenticate(text[:-1] + ("0" if text[-1] != "0" else "1"))


async def test_one_that_was_never_seen_is_asked_to_come_again() -> None:
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


async def test_what_cannot_be_revoked_is_refused_here_and_not_said_to_be_done() -> None:
    engine, book = await opened()
    text, id_ = await made(book)
    engine.away = frozenset({id_})
    look_again(book)
    with pytest.raises(EngineUnavailable, match="lets it in no more"):
        await book.revoke("t")
    with pytest.raises(Unauthenticated):
        await book.authenticate(text)
    engine.away = frozenset()
    look_again(book)
    with pytest.raises(Unauthenticated):
        await book.authenticate(text)
    await book.revoke(id_)
    assert await engine.load(KIND, limit=10) == []


async def test_whether_there_is_such_a_token_is_not_said_without_knowing() -> None:
    engine, book = await opened()
    engine.away = frozenset({"elsewhere"})
    with pytest.raises(EngineUnavailable):
        await book.revoke("nobody")
    engine.away = frozenset()
    with pytest.raises(NotFound):
        await book.revoke("nobody")


async def test_one_that_was_revoked_does_not_come_back_when_a_part_goes_away() -> None:
    engine, book = await opened()
    text, id_ = await made(book)
    await book.revoke(id_)
    engine.away = frozenset({"something"})
    look_again(book)
    with pytest.raises(Unauthenticated):
        await book.authenticate(text)


async def test_a_quota_in_the_part_that_is_away_holds_still() -> None:
    engine = Parted()
    await engine.open()
    quotas = Quotas(lambda: engine, is_whole=lambda: engine.is_whole)
    await quotas.put("namespace", Quota(depth=1))
    quotas.ended(await quotas.charge([NewJob(id="a", task="t")]))
    [known] = await engine.load(QUOTA_KIND, limit=10)
    engine.away = frozenset({known.key})
    quotas._kept.forget()
    with pytest.raises(QuotaExceeded):
        await quotas.charge([NewJob(id=str(n), task="t") for n in range(2)])
    engine.away = frozenset()
    assert await engine.save([Record(kind=QUOTA_KIND, key=known.key, value=None, version=1)]) == [
        Saved.SAVED
    ]
    quotas._kept.forget()
    await quotas.charge([NewJob(id=str(n), task="t") for n in range(2)])


async def test_a_server_knows_whether_its_store_is_whole() -> None:
    engine = Parted()
    async with house(ServerSettings(auth=True), default=engine) as at:
        token = await at.token("operate")
        assert (await at.ask("GET", "/v1/queues", token=token)).status == 200
        engine.away = frozenset({token.split("_")[1]})
        look_again(at.server.tokens)
        assert (await at.ask("GET", "/v1/queues", token=token)).status == 200
        stranger = f"hf_{'0' * 12}_{'0' * 64}"
        assert (await at.ask("GET", "/v1/queues", token=stranger)).status == 503
        engine.away = frozenset()
        assert (await at.ask("GET", "/v1/queues", token=stranger)).status == 401
