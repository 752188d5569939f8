"""The dashboard of a real server: files over a socket, and sign-in over TLS, behind a proxy and on
loopback."""

import asyncio
import json
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.app.application import Holdfast
from holdfast.ops.tokens import TokenRequest, Tokens
from holdfast.process import wall_ms
from tests.certificates import self_signed
from tests.server.server_process import (
    over_tls,
    read_until,
    request,
    server_process,
)

Exchange = Callable[[bytes], bytes]


def admin_token(folder: Path) -> str:
    async def create() -> str:
        async with Holdfast(f"sqlite:///{folder / 'jobs.db'}") as app:
            wanted = TokenRequest(name="ann", scopes=("admin",))
            return (await Tokens(lambda: app.engine, wall_ms).create(wanted))[0]

    return asyncio.run(create())


def ask(
    exchange: Exchange, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, str, Any]:
    """The status, the head and the body of an answer."""
    sent = b"" if body is None else json.dumps(body).encode()
    given = {"holdfast_dashboard": "1", **headers}
    head, _, said = exchange(request(method, path, sent, **given)).partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode(), json.loads(said) if said else None


def cookie_in(head: str) -> str:
    found = re.search(r"(?m)^set-cookie: ([^;]+); (.*)\r$", head)
    assert found, head
    assert "HttpOnly; SameSite=Strict" in found[2]
    assert found[1].startswith("__Host-") == ("Secure" in found[2])
    return found[1]


def test_sign_in_over_tls(tmp_path: Path) -> None:
    token = admin_token(tmp_path)
    certificate, key = self_signed(tmp_path, "server")
    trusting = ssl.create_default_context(cafile=str(certificate))
    flags = ("--auth", "--tls-cert", str(certificate), "--tls-key", str(key))
    with server_process(tmp_path, *flags) as process:

        def exchange(data: bytes) -> bytes:
            return over_tls(process, trusting, data)

        own = {"origin": "https://localhost"}
        status, head, shown = ask(exchange, "POST", "/v1/session", {"token": token}, **own)
        assert (status, shown["name"], shown["signed_in"]) == (200, "ann", True)
        cookie = cookie_in(head)
        assert cookie.startswith("__Host-holdfast_session=")
        status, _, shown = ask(exchange, "GET", "/v1/session", cookie=cookie, **own)
        assert (status, shown["name"]) == (200, "ann")
        assert ask(exchange, "DELETE", "/v1/session", cookie=cookie, **own)[0] == 204
        assert ask(exchange, "GET", "/v1/session", cookie=cookie, **own)[0] == 401


def test_sign_in_behind_a_proxy_and_on_loopback_and_nothing_changes(tmp_path: Path) -> None:
    token = admin_token(tmp_path)
    with server_process(tmp_path, "--proxy", "127.0.0.1", "--read-only") as process:
        body = {"token": token}
        proxied = {"x_forwarded_for": "10.0.0.7"}
        plain, secure = {"origin": "http://localhost"}, {"origin": "https://localhost"}
        over_https = {**proxied, **secure, "x_forwarded_proto": "https"}
        status, head, _ = ask(process.exchange, "POST", "/v1/session", body, **over_https)
        assert status == 200
        cookie = cookie_in(head)
        assert cookie.startswith("__Host-")
        assert ask(process.exchange, "GET", "/v1/queues", cookie=cookie, **over_https)[0] == 200
        # The proxy took it over plain HTTP.
        status, head, refused = ask(
            process.exchange, "POST", "/v1/session", body, **proxied, **plain
        )
        assert (status, refused["error"]["code"]) == (403, "forbidden")
        assert "set-cookie" not in head
        # A direct connection of the server's own user.
        status, head, shown = ask(process.exchange, "POST", "/v1/session", body, **plain)
        assert (status, shown["read_only"]) == (200, True)
        cookie = cookie_in(head)
        assert cookie.startswith("holdfast_session=")
        assert ask(process.exchange, "GET", "/v1/queues", cookie=cookie, **plain)[0] == 200
        status, _, refused = ask(
            process.exchange, "POST", "/v1/queues", {"name": "q"}, cookie=cookie, **plain
        )
        assert (status, refused["error"]["code"]) == (403, "read_only")


def test_files_are_sent_once_on_a_connection_that_is_kept(tmp_path: Path) -> None:
    with server_process(tmp_path) as process, process.connect() as connection:
        line = b"GET / HTTP/1.1\r\nhost: localhost\r\naccept-encoding: gzip\r\n"
        connection.sendall(line + b"\r\n")
        head = read_until(connection, b"\r\n\r\n").partition(b"\r\n\r\n")[0].decode()
        assert "200 OK" in head
        assert "content-encoding: gzip" in head
        tag = re.search(r"(?m)^etag: (.*)\r$", head + "\r\n")
        assert tag
        # The second answer has no body, so the third begins right after its head.
        again = line + f"if-none-match: {tag[1]}\r\n\r\n".encode()
        connection.sendall(again + b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        said = read_until(connection, b'"version"')
        assert b"HTTP/1.1 304" in said
        answer = said.partition(b"HTTP/1.1 304")[2].partition(b"\r\n\r\n")[2]
        assert answer.startswith(b"HTTP/1.1 200")
