"""Decoding of properties: whatever the bytes, a value or ValueError, and never anything else."""

from __future__ import annotations

import contextlib
import struct

import pytest
from aiormq import spec
from hypothesis import given
from hypothesis import strategies as st
from pamqp import decode as library

from holdfast.engines.rabbitmq import decode
from holdfast.engines.rabbitmq.message import plain_value, text_headers


@pytest.fixture(autouse=True)
def _installed() -> None:
    decode.install()


def table(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack(">I", len(body)) + body


def entry(name: bytes, code: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + code + value


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    decode.install()
    for method in ("table", "shortstr", "timestamp", "array"):
        with contextlib.suppress(ValueError):
            library.METHODS[method](data)


@given(
    st.dictionaries(
        st.text(max_size=20),
        st.one_of(st.text(), st.integers(-(2**63), 2**63 - 1), st.booleans(), st.none()),
    )
)
def test_headers_return_as_they_were_sent(headers: dict[str, object]) -> None:
    decode.install()
    properties = spec.Basic.Properties(headers=headers)  # type: ignore[arg-type]
    data = properties.marshal()
    read = spec.Basic.Properties()
    (flags,) = struct.unpack(">H", data[:2])
    read.unmarshal(flags, data[2:])
    assert (read.headers or {}) == headers


def test_values_that_the_library_refuses() -> None:
    data = table(
        entry(b"\xff", b"S", struct.pack(">I", 1) + b"\xfe"),
        entry(b"t", b"T", struct.pack(">Q", 2**63)),
        entry(b"nan", b"d", struct.pack(">d", float("nan"))),
        entry(b"inf", b"f", struct.pack(">f", float("inf"))),
        entry(b"?", b"?", b"unknown type"),
    )
    size, found = library.METHODS["table"](data)
    assert size == len(data)
    assert isinstance(found, dict)
    assert text_headers(found) == {
        r"\xff": '"/g=="',
        "t": str(2**63),
        "nan": '"nan"',
        "inf": '"inf"',
        "?": '"P3Vua25vd24gdHlwZQ=="',
    }


def test_deep_tables_stay_bytes() -> None:
    value = table()
    for _ in range(1_000):
        value = table(entry(b"d", b"F", value))
    size, found = library.METHODS["table"](value)
    assert size == len(value)
    assert plain_value(found) is not None
