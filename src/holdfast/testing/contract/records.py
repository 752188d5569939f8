"""Small versioned values beside the jobs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.model import Record
from holdfast.engines.base import Saved
from holdfast.errors import UsageError
from holdfast.testing import hostile
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin

_BAD_NAMES = ("", "A", "a b", "x" * 41, "\x00", "\ud800", "'; DROP")


def record(key: str = "a", value: bytes | None = b"1", version: int = 0) -> Record:
    return Record(kind="setting", key=key, value=value, version=version)


class Records:
    async def test_a_saved_record_comes_back_with_the_next_version(self, twin: Twin) -> None:
        assert await twin.load("setting") == []
        assert await twin.save([record(value=b"\x00\xff")]) == [Saved.SAVED]
        assert await twin.load("setting") == [record(value=b"\x00\xff", version=1)]
        assert await twin.save([record(value=b"", version=1)]) == [Saved.SAVED]
        assert await twin.load("setting") == [record(value=b"", version=2)]

    async def test_only_the_version_that_was_read_can_be_replaced(self, twin: Twin) -> None:
        await twin.save([record()])
        await twin.save([record(value=b"2", version=1)])
        for version in (0, 1, 3):
            assert await twin.save([record(value=b"x", version=version)]) == [Saved.STALE]
        assert await twin.load("setting") == [record(value=b"2", version=2)]

    async def test_a_record_that_is_not_there_has_version_zero(self, twin: Twin) -> None:
        assert await twin.save([record(version=1)]) == [Saved.STALE]
        assert await twin.load("setting") == []

    async def test_none_deletes(self, twin: Twin) -> None:
        await twin.save([record()])
        assert await twin.save([record(value=None)]) == [Saved.STALE]
        assert await twin.save([record(value=None, version=1)]) == [Saved.SAVED]
        assert await twin.load("setting") == []
        assert await twin.save([record(value=None)]) == [Saved.SAVED]
        assert await twin.load("setting") == []
        assert await twin.save([record(value=b"again")]) == [Saved.SAVED]
        assert await twin.load("setting") == [record(value=b"again", version=1)]

    async def test_a_batch_is_answered_one_by_one_and_sees_itself(self, twin: Twin) -> None:
        batch = [record("a"), record("a"), record("b"), record("a", b"2", 1), record("c", b"x", 9)]
        assert await twin.save(batch) == [
            Saved.SAVED,
            Saved.STALE,
            Saved.SAVED,
            Saved.SAVED,
            Saved.STALE,
        ]
        assert [kept.version for kept in await twin.load("setting")] == [2, 1]
        assert await twin.save([]) == []

    async def test_a_record_is_as_old_as_its_last_save(self, harness: Harness, twin: Twin) -> None:
        await twin.save([record(), record("b")])
        harness.clock.advance(70)
        assert [kept.age_ms for kept in await twin.load("setting")] == [70, 70]
        stale = replace(record(value=b"2", version=9), age_ms=5)
        assert await twin.save([stale]) == [Saved.STALE]
        assert await twin.save([replace(stale, version=1)]) == [Saved.SAVED]
        assert [kept.age_ms for kept in await twin.load("setting")] == [0, 70]
        harness.clock.advance(3)
        assert [kept.age_ms for kept in await twin.load("setting")] == [3, 73]
        harness.clock.jump(-50)
        assert [kept.age_ms for kept in await twin.load("setting")] == [0, 23]

    async def test_each_kind_is_by_itself(self, twin: Twin) -> None:
        other = replace(record(), kind="pause", value=b"p")
        assert await twin.save([record(), other]) == [Saved.SAVED, Saved.SAVED]
        assert await twin.load("setting") == [record(version=1)]
        assert await twin.load("pause") == [replace(other, version=1)]
        assert await twin.load("nothing") == []

    async def test_law_09_records_come_by_the_bytes_of_their_keys(self, twin: Twin) -> None:
        keys = ["b", "B", "a", "é", "\uffff", "\U00010000", "a b", "a/b", "ab", "_", "10", "9"]
        await twin.save([record(key) for key in keys])
        kept = [kept.key for kept in await twin.load("setting")]
        assert kept == sorted(keys, key=str.encode)
        assert [kept.key for kept in await twin.load("setting", limit=2)] == kept[:2] == ["10", "9"]
        for place, key in enumerate(kept):
            rest = await twin.load("setting", after=key)
            assert [kept.key for kept in rest] == kept[place + 1 :]
        assert len(await twin.load("setting", after="")) == len(keys)

    async def test_hostile_keys_are_kept_exactly(self, twin: Twin) -> None:
        await twin.save([record(text, text.encode()) for text in hostile.STORABLE_TEXTS])
        kept = {kept.key: kept.value for kept in await twin.load("setting")}
        assert kept == {text: text.encode() for text in hostile.STORABLE_TEXTS}

    async def test_a_bad_record_is_refused_and_the_batch_with_it(self, twin: Twin) -> None:
        bad = [record(text) for text in hostile.UNSTORABLE_TEXTS]
        bad += [replace(record(), kind=name) for name in _BAD_NAMES]
        bad += [record(value=b"x" * (limits.RECORD_MAX + 1))]
        for each in bad:
            with pytest.raises(UsageError):
                await twin.save([record("good"), each])
        assert await twin.load("setting") == []

    async def test_the_largest_record_fits(self, twin: Twin) -> None:
        value = b"x" * limits.RECORD_MAX
        assert await twin.save([record(value=value)]) == [Saved.SAVED]
        assert (await twin.load("setting"))[0].value == value

    async def test_law_10_records_are_bounded(self, twin: Twin) -> None:
        with pytest.raises(UsageError):
            await twin.save([record(f"k{n}") for n in range(limits.BATCH_MAX + 1)])
        for limit in (0, -1, limits.PAGE_MAX + 1):
            with pytest.raises(UsageError):
                await twin.load("setting", limit=limit)
        for name, after in (("\x00", None), ("", None), ("setting", "\x00"), ("setting", "\ud800")):
            with pytest.raises(UsageError):
                await twin.load(name, after=after)
