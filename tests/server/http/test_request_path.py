"""Paths, methods, queries and headers: typed or refused."""

from typing import Any

import pytest

from tests.server.sample_api import serve


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/v1/things/a", {"name": "a"}),
        ("/v1/things/a%2Fb%20c", {"name": "a/b c"}),
        ("/v1/things/%C3%A4", {"name": "ä"}),
        # The literal path is for another method: this is a thing of that name.
        ("/v1/things/count", {"name": "count"}),
        ("/v1/thing%73/a", {"name": "a"}),
    ],
)
async def test_a_path_is_found(path: str, wanted: dict[str, Any]) -> None:
    client, _ = serve()
    said = await client.ask("GET", path)
    assert said.status == 200
    assert said.json["name"] == wanted["name"]


@pytest.mark.parametrize(
    "path",
    ["/", "", "/v1", "/v1/things", "/v1/things/", "//v1/things/a", "/v1/things/a/1/2", "/V1/text"],
)
async def test_unknown_names_are_not_found(path: str) -> None:
    client, _ = serve()
    said = await client.ask("GET", path)
    assert (said.status, said.code) == (404, "unknown_path")


async def test_a_path_that_is_not_utf8_is_refused() -> None:
    client, _ = serve()
    assert (await client.ask("GET", "/v1/things/%ff")).status == 400
    assert (await client.ask("GET", "/v1/things/" + "a" * 9_000)).status == 400


async def test_a_wrong_method_gets_the_allowed_ones() -> None:
    client, _ = serve()
    said = await client.ask("PUT", "/v1/things/a")
    assert (said.status, said.code) == (405, "wrong_method")
    assert said.headers["allow"] == "DELETE, GET, HEAD"
    # Of two that fit, the literal one is meant.
    assert (await client.ask("PUT", "/v1/things/count")).headers["allow"] == "POST"


async def test_head_is_get_without_a_body() -> None:
    client, _ = serve()
    said = await client.ask("HEAD", "/v1/text")
    assert (said.status, said.body) == (200, b"")
    assert said.headers["content-length"] == "8"
    assert (await client.ask("GET", "/v1/text")).body == b"as it is"


async def test_a_path_is_typed() -> None:
    client, _ = serve()
    assert (await client.ask("GET", "/v1/things/abc/7")).json == ["abc", 7]
    for path in ("/v1/things/abcd/7", "/v1/things/abc/-1", "/v1/things/abc/x", "/v1/things/a/07"):
        said = await client.ask("GET", path)
        assert (said.status, said.code) == (400, "invalid_request")


async def test_a_query_is_typed() -> None:
    client, _ = serve()
    said = await client.ask("GET", "/v1/things/a?limit=7&states=x&states=y%2Cz&ratio=1.5&dry=true")
    assert said.json["query"] == {"limit": 7, "states": ["x", "y,z"], "ratio": 1.5, "dry": True}
    said = await client.ask("GET", "/v1/things/a")
    assert said.json["query"] == {"limit": 5, "states": [], "ratio": None, "dry": False}


@pytest.mark.parametrize(
    "query",
    [
        "limits=7",
        "limit=7&limit=8",
        "limit=",
        "limit=10",
        "limit=7.5",
        "limit=+7",
        "limit=1_0",
        "limit=null",
        "ratio=nan",
        "ratio=null",
        "dry=1",
        "dry=True",
        "limit",
        "states=%ff",
        "&".join(["states=x"] * 2_000),
    ],
)
async def test_an_invalid_query_is_refused(query: str) -> None:
    client, _ = serve()
    assert (await client.ask("GET", f"/v1/things/a?{query}")).status == 400


async def test_a_query_is_refused_where_none_is_taken() -> None:
    client, _ = serve()
    assert (await client.ask("GET", "/v1/text?a=1")).code == "invalid_request"


async def test_ambiguous_headers_are_refused() -> None:
    client, _ = serve()
    said: list[Any] = []

    async def send(event: Any) -> None:
        said.append(event)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/text",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"host", b"elsewhere")],
        "client": ("127.0.0.1", 1),
    }
    await client.application(scope, receive, send)
    assert said[0]["status"] == 400
