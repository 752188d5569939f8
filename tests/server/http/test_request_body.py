"""Request bodies: typed, bounded, and refused before they cost anything."""

from typing import Any

import pytest

from holdfast.server.access.admission import ApiCall
from holdfast.server.http.operation import Scope, operation
from holdfast.server.http.request import write_whole_floats_as_ints
from tests.server.sample_api import serve


async def test_a_body() -> None:
    client, _ = serve()
    said = await client.ask("POST", "/v1/things/count", {"count": 3})
    assert (said.status, said.json) == (201, {"count": 3, "note": ""})
    typed = {"content-type": "Application/JSON; charset=utf-8"}
    assert (await client.ask("POST", "/v1/things/count", {"count": 3}, headers=typed)).status == 201


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "bad_request"),
        (b"{", 400, "bad_request"),
        (b'{"count":1}x', 400, "bad_request"),
        (b'{"count":"1"}', 400, "invalid_request"),
        (b'{"count":1.5}', 400, "invalid_request"),
        (b'{"count":1.0,"note":"1', 400, "bad_request"),
        (b'{"count":1,"more":2}', 400, "invalid_request"),
        (b'{"count":1,"note":"\xff"}', 400, "bad_request"),
        (b"[" * 100_000, 400, "invalid_request"),
        (b'{"count":1,"more":' + b"[" * 100_000, 400, "invalid_request"),
        (b'{"note":' + b'{"a":' * 100_000, 400, "invalid_request"),
        (b'{"count":' + b"9" * 100_000 + b"}", 400, "invalid_request"),
    ],
)
async def test_an_invalid_body_is_refused(body: bytes, status: int, code: str) -> None:
    client, _ = serve()
    said = await client.ask("POST", "/v1/things/count", body)
    assert said.status == status
    assert said.code in (code, "bad_request")
    assert set(said.json["error"]) == {"code", "message", "detail"}


async def test_a_body_nested_too_deeply() -> None:
    @operation("POST", "/v1/any", needs=Scope.OPERATE, repeatable=True)
    async def anything(call: ApiCall, body: Any) -> int:
        return 1

    client, _ = serve(anything)
    for opening in (b"[", b'{"a":'):
        said = await client.ask("POST", "/v1/any", opening * 100_000)
        assert (said.status, said.code) == (400, "bad_request")
        assert "deep" in said.json["error"]["message"]


async def test_an_integer_may_be_written_as_a_float() -> None:
    client, _ = serve()
    said = await client.ask("POST", "/v1/things/count", b'{"count":3.0,"note":"1.0 \\" 2.0"}')
    assert said.json == {"count": 3, "note": '1.0 " 2.0'}
    assert write_whole_floats_as_ints(b'{"1.0":[1.0,-2e3,2.5,1e400,7,"\\\\"],"a":0.0') == (
        b'{"1.0":[1,-2000,2.5,1e400,7,"\\\\"],"a":0'
    )


def test_payloads_are_not_rewritten() -> None:
    jobs = b'{"jobs":[{"payload":%b,"priority":5.0},{"priority":1.0,"payload":2.0},{"delay":1.0}]}'
    for payload in (
        b"1.0",
        b'{"payload":{"a":[1.0,{}]},"b":2.0}',
        b'[[1.0],{"a,":3.0}]',
        b'"1.0}"',
    ):
        said = jobs % payload
        whole = said.replace(b"5.0", b"5").replace(b'"priority":1.0', b'"priority":1')
        assert write_whole_floats_as_ints(said) == whole.replace(b'"delay":1.0', b'"delay":1')


async def test_a_large_body_is_not_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    # A number is looked at in microseconds, and millions of them would keep everybody waiting.
    monkeypatch.setattr("holdfast.server.http.request.write_whole_floats_as_ints", None)
    client, _ = serve()
    body = b'{"count":3.0,"note":"%b"}' % (b"x" * 20_000)
    assert (await client.ask("POST", "/v1/things/count", body)).code == "invalid_request"


async def test_another_content_type_is_refused() -> None:
    client, _ = serve()
    for headers in (
        {"content-type": "text/plain"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ):
        said = await client.ask("POST", "/v1/things/count", b"{}", headers=headers)
        assert (said.status, said.code) == (415, "wrong_content")


async def test_a_body_without_required_fields_may_be_left_out() -> None:
    client, _ = serve()
    assert (await client.ask("POST", "/v1/loose")).json == {"note": "nothing"}
    assert (await client.ask("POST", "/v1/things/count")).status == 415


async def test_a_body_that_is_too_large() -> None:
    client, _ = serve(body_max=100)
    declared = {"content-length": "101", "content-type": "application/json"}
    for parts in ([b"x" * 60, b"x" * 60], [b"x" * 101]):
        said = await client.ask("POST", "/v1/things/count", b"", parts=parts)
        assert (said.status, said.code) == (413, "too_large")
    # It is refused before it comes.
    said = await client.ask("POST", "/v1/things/count", b"", parts=[], headers=declared)
    assert said.status == 413
    assert said.headers["connection"] == "close"
