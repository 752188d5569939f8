"""Both ends of an output are kept within a bound, however it is split into writes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.worker.child.context import BoundedOutput


def written(*chunks: bytes, most: int = 200) -> BoundedOutput:
    output = BoundedOutput(most)
    for chunk in chunks:
        output.write(chunk)
    return output


def test_short_output_is_kept_whole() -> None:
    assert written(b"one\n", b"", b"two\n").value() == b"one\ntwo\n"
    assert written().value() == b""


def test_both_ends_of_long_output_are_kept() -> None:
    value = written(b"a" * 1_000, b"b" * 1_000).value()
    assert value == b"a" * 68 + b"\n... 1864 bytes left out ...\n" + b"b" * 68


@given(st.lists(st.binary(max_size=300)), st.integers(0, 300))
def test_chunks_make_no_difference(chunks: list[bytes], most: int) -> None:
    whole = b"".join(chunks)
    value = written(*chunks, most=most).value()
    assert value == written(whole, most=most).value()
    half = max(0, (most - 64) // 2)
    assert value.startswith(whole[:half])
    assert value.endswith(whole[len(whole) - half :] if half else b"")
    assert len(value) <= max(most, 64)


@pytest.mark.parametrize("size", [1, 100, 65_536])
def test_memory_is_bounded(size: int) -> None:
    output = BoundedOutput(1_000)
    for _ in range(5_000):
        output.write(b"x" * size)
    assert output.size == 5_000 * size
    assert len(output._head) + len(output._tail) < 2_000


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", ""),
        (b"\n\n", ""),
        (b"one", "one"),
        (b"one\ntwo\n\n  \n", "two"),
        (b"a\xffb", "a\ufffdb"),
        (b"x" * 500, "x" * 199 + "…"),
        (b"x" * 500 + b"\nlast\n", "last"),
    ],
)
def test_last_line(data: bytes, line: str) -> None:
    assert written(data, most=1_000).last_line() == line
    assert written(b"earlier\n" * 1_000 + data, most=1_000).last_line() == (line or "earlier")
