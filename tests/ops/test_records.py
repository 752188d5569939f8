"""Typed records: reading, isolation of unreadable ones, and the compare-and-set loop."""

from collections.abc import Sequence

import msgspec
import pytest

from holdfast.core import bounds
from holdfast.core.model import Record
from holdfast.engines.base import Engine, Saved
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import ConfigError, EngineUnavailable
from holdfast.ops.records import TRIES_MAX, RecordKind, remove_records, scan
from holdfast.ops.tokens import SCOPES
from holdfast.server.access.caller import GRANTABLE


class Note(msgspec.Struct, frozen=True):
    text: str


def check_short(note: Note) -> None:
    if len(note.text) >= 5:
        raise ValueError("too long")


NOTES = RecordKind("note", Note)
STRICT = RecordKind("note", Note, strict=True, remedy="write it again")
SHORT = RecordKind("note", Note, check=lambda _, note: check_short(note))
FALLBACK = RecordKind("note", Note, fallback=lambda: Note("?"))


class BusyEngine(MemoryEngine):
    """Lets another writer win the first `overtaken` saves."""

    def __init__(self, overtaken: int) -> None:
        super().__init__()
        self.overtaken = overtaken

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        if self.overtaken:
            self.overtaken -= 1
            found = {record.key: record for record in await self.load("note", limit=10)}
            other = found.get("a", Record(kind="note", key="a", value=None))
            value = msgspec.json.encode(Note(f"other {self.overtaken}"))
            await super().save([msgspec.structs.replace(other, value=value)])
        return await super().save(records)


@pytest.fixture
async def store() -> Engine:
    engine = MemoryEngine()
    await engine.open()
    return engine


async def put(engine: Engine, key: str, value: bytes) -> None:
    assert await engine.save([Record(kind="note", key=key, value=value)]) == [Saved.SAVED]


async def test_create_read_update_remove(store: Engine) -> None:
    assert await NOTES.read(store, "a") is None
    assert await NOTES.create(store, "a", Note("one"))
    assert not await NOTES.create(store, "a", Note("two"))
    changed = await NOTES.update(store, "a", lambda note: Note(f"{note and note.text}!"))
    assert changed == Note("one!")
    found = await NOTES.read(store, "a")
    assert found is not None
    assert (found.value, found.version) == (Note("one!"), 2)
    assert await NOTES.remove(store, "a")
    assert not await NOTES.remove(store, "a")
    assert await NOTES.values(store) == {}


async def test_the_stored_form_is_plain_json(store: Engine) -> None:
    await NOTES.create(store, "a", Note("one"))
    [record] = await store.load("note", limit=10)
    assert record.value == b'{"text":"one"}'


async def test_update_creates_leaves_alone_and_removes(store: Engine) -> None:
    assert await NOTES.update(store, "a", lambda note: note) is None
    assert await store.load("note", limit=10) == []
    assert await NOTES.update(store, "a", lambda _: Note("new")) == Note("new")
    assert await NOTES.update(store, "a", lambda note: note) == Note("new")
    [record] = await store.load("note", limit=10)
    assert record.version == 1
    assert await NOTES.update(store, "a", lambda _: None) is None
    assert await store.load("note", limit=10) == []


async def test_update_runs_again_after_a_concurrent_write() -> None:
    engine = BusyEngine(overtaken=3)
    await engine.open()
    seen: list[Note | None] = []

    def change(note: Note | None) -> Note:
        seen.append(note)
        return Note("mine")

    assert await NOTES.update(engine, "a", change) == Note("mine")
    assert seen == [None, Note("other 2"), Note("other 1"), Note("other 0")]


async def test_update_stored_starts_from_the_known_record_and_returns_the_new_version() -> None:
    engine = BusyEngine(overtaken=0)
    await engine.open()
    await NOTES.create(engine, "a", Note("one"))
    known = await NOTES.read(engine, "a")
    first = await NOTES.update_stored(engine, "a", lambda _: Note("two"), known=known)
    assert first is not None
    assert (first.value, first.version) == (Note("two"), 2)
    seen: list[Note | None] = []

    def change(note: Note | None) -> Note:
        seen.append(note)
        return Note("three")

    second = await NOTES.update_stored(engine, "a", change, known=known)
    assert seen == [Note("one"), Note("two")], "the known record was stale, so it was read again"
    assert await NOTES.read(engine, "a") == second
    unchanged = await NOTES.update_stored(engine, "a", lambda note: note)
    assert unchanged == second


async def test_a_check_refuses_a_removal(store: Engine) -> None:
    await NOTES.create(store, "a", Note("one"))

    def check(record: Record) -> None:
        raise ConfigError(f"{record.key} stays")

    with pytest.raises(ConfigError, match="a stays"):
        await NOTES.remove(store, "a", check=check)
    assert await NOTES.values(store) == {"a": Note("one")}


async def test_a_loop_that_never_wins_ends_with_an_error() -> None:
    engine = BusyEngine(overtaken=2 * TRIES_MAX)
    await engine.open()
    with pytest.raises(EngineUnavailable, match="note a is being changed by others: try again"):
        await NOTES.update(engine, "a", lambda _: Note("mine"))
    with pytest.raises(EngineUnavailable, match="note a is being changed by others: try again"):
        await NOTES.remove(engine, "a")


async def test_an_unreadable_record_is_isolated(store: Engine) -> None:
    await put(store, "bad", b'{"text": 3}')
    await put(store, "good", b'{"text": "x"}')
    await put(store, "worse", b"\xff\x00")
    assert await NOTES.values(store) == {"good": Note("x")}
    found = {each.key: each.value async for each in NOTES.read_all(store)}
    assert found == {"bad": None, "good": Note("x"), "worse": None}
    assert (await FALLBACK.values(store))["worse"] == Note("?")
    assert await NOTES.update(store, "bad", lambda note: note or Note("anew")) == Note("anew")
    assert await NOTES.remove(store, "worse")


async def test_a_strict_kind_refuses_to_overwrite_an_unreadable_record(store: Engine) -> None:
    await put(store, "bad", b"[]")
    with pytest.raises(ConfigError, match=r"record of note bad cannot be read .*: write it again"):
        await STRICT.update(store, "bad", lambda _: Note("anew"))
    assert await STRICT.remove(store, "bad")


async def test_a_check_rejects_a_value(store: Engine) -> None:
    await NOTES.create(store, "a", Note("short"))
    await NOTES.create(store, "b", Note("tiny"))
    assert await SHORT.values(store) == {"b": Note("tiny")}


async def test_one_record_is_found_among_many_with_the_same_beginning(store: Engine) -> None:
    keys = [f"a{number:04}" for number in range(1_200)]
    records = [NOTES.record(key, Note(key)) for key in keys]
    for start in range(0, len(records), bounds.BATCH_MAX):
        await store.save(records[start : start + bounds.BATCH_MAX])
    for key in ("a0000", "a0019", "a0020", "a1199"):
        found = await NOTES.read(store, key)
        assert found is not None
        assert found.value == Note(key)
    for key in ("a", "a00000", "a1200", "b", "", "a\x00", "\udc80"):
        assert await NOTES.read(store, key) is None
    assert [record.key async for record in scan(store, "note")] == keys
    await remove_records(store, await store.load("note", limit=bounds.PAGE_MAX))
    assert [record.key async for record in scan(store, "note")] == keys[bounds.PAGE_MAX :]


def test_tokens_have_the_scopes_that_the_server_knows() -> None:
    assert tuple(GRANTABLE) == SCOPES
