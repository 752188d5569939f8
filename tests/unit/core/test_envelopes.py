"""Messages as payloads: bodies stay readable, attributes come back, hostile bytes are a body."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.app.signature import BatchSignature, Signature
from holdfast.core.codec import (
    ENVELOPE,
    JSON,
    TEXT,
    Attribute,
    Envelope,
    body_type,
    open_body,
    pack_envelope,
    unpack_envelope,
)

ATTRIBUTES = {
    "trace": Attribute("String", b"a/b"),
    "count": Attribute("Number.int", b"7"),
    "blob": Attribute("Binary", b"\x00\xff"),
}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"to":"a"}', JSON),
        (b"[1,2]", JSON),
        (b'{"to":', TEXT),
        (b"[1,2] and more", TEXT),
        (b"7", TEXT),
        (b"hello", TEXT),
        (b"", TEXT),
        (b"[" * 100_000, TEXT),
    ],
)
def test_a_body_without_attributes_is_the_payload(body: bytes, expected: str) -> None:
    assert pack_envelope(body, {}) == (body, expected)
    assert unpack_envelope(body, expected) == Envelope(body, {})
    assert body_type(body) == expected


@given(
    st.binary(),
    st.dictionaries(st.text(), st.builds(Attribute, st.text(), st.binary()), min_size=1),
)
def test_attributes_come_back(body: bytes, attributes: dict[str, Attribute]) -> None:
    try:
        payload, content_type = pack_envelope(body, attributes)
    except UnicodeEncodeError:
        return  # Lone surrogates are refused before.
    assert content_type == ENVELOPE
    assert unpack_envelope(payload, content_type) == Envelope(body, attributes)
    assert open_body(payload, content_type) == (body, body_type(body))


@given(st.binary())
def test_a_damaged_envelope_is_a_body(data: bytes) -> None:
    assert unpack_envelope(data, ENVELOPE).body is not None


def test_the_overhead_of_ten_attributes_is_small() -> None:
    attributes = {f"{n:0256}": Attribute("String." + "x" * 249, b"v" * 1000) for n in range(10)}
    size = sum(len(name) + len(each.type) + len(each.value) for name, each in attributes.items())
    payload, _ = pack_envelope(b"b", attributes)
    assert len(payload) - size - 1 < 256


def test_workers_run_the_body_of_an_envelope() -> None:
    def send(to: str) -> None: ...

    def take(body: bytes) -> None: ...

    def take_all(bodies: list[bytes]) -> None: ...

    json = pack_envelope(b'{"to":"a"}', ATTRIBUTES)
    text = pack_envelope(b"hello", ATTRIBUTES)
    assert Signature("send", send).arguments(*json) == ((), {"to": "a"})
    assert Signature("take", take).arguments(*text) == ((), {"body": b"hello"})
    assert BatchSignature("all", take_all).arguments(*text) == ((b"hello",), {})
    assert msgspec.msgpack.decode(json[0])[0] == b'{"to":"a"}'
