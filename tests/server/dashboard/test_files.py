"""The files of the dashboard: types, compression, tags and the headers that confine the page."""

import gzip
import re
from collections.abc import AsyncIterator

import pytest

from holdfast.conformance.contract.cases import case
from holdfast.server.dashboard import files
from holdfast.server.settings import ServerSettings
from tests.server.direct_server import DirectServer, direct_server

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'"
)
PATHS = [each.path for each in files.OPERATIONS]
TEXTS = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
[FOLDER] = {path.removesuffix(files.SCRIPT) for path in PATHS if path.endswith(files.SCRIPT)}


@pytest.fixture
async def server() -> AsyncIterator[DirectServer]:
    async with direct_server(ServerSettings(auth=True)) as server:
        yield server


def test_few_files_are_served_each_at_its_own_path() -> None:
    licences = {f"vendor/{path.name}" for path in files.WEB.glob("vendor/*.txt")}
    wanted = {files.SCRIPT, files.STYLE, "icon.svg", *licences}
    assert {path.removeprefix(FOLDER) for path in PATHS} == wanted | {"/"}
    assert re.fullmatch(r"/dashboard/[0-9a-f]{16}/", FOLDER)
    assert all(re.fullmatch(r"[/A-Za-z0-9_.-]+", path) for path in PATHS)


async def test_files_come_with_their_types_and_confine_the_page(server: DirectServer) -> None:
    for path in PATHS:
        with case(path):
            found = await server.ask("GET", path)
            is_index = path == "/"
            file = files.WEB / (files.INDEX if is_index else path.removeprefix(FOLDER))
            assert found.status == 200
            assert not file.is_file() or is_index or found.body == file.read_bytes()
            kind = found.headers["content-type"]
            text = TEXTS.get(file.suffix)
            assert text is None or kind == f"{text}; charset=utf-8"
            assert file.suffix != ".svg" or kind == "image/svg+xml"
            assert found.headers["content-security-policy"] == POLICY
            kept = "public, max-age=31536000, immutable"
            assert found.headers["cache-control"] == ("no-cache" if is_index else kept)
            assert found.headers["x-content-type-options"] == "nosniff"
            assert found.headers["x-frame-options"] == "DENY"
            assert found.headers["referrer-policy"] == "no-referrer"
            assert found.headers["cross-origin-opener-policy"] == "same-origin"


async def test_files_are_compressed_for_clients_that_allow_it(server: DirectServer) -> None:
    plain = await server.ask("GET", "/")
    packed = await server.ask("GET", "/", accept_encoding="gzip, deflate, br")
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body)
    assert "content-encoding" not in plain.headers
    # A cache must tell the two apart.
    assert plain.headers["etag"] != packed.headers["etag"]
    assert plain.headers["vary"] == packed.headers["vary"] == "accept-encoding"


async def test_a_client_that_has_the_file_gets_no_body(server: DirectServer) -> None:
    for encoding in (None, "gzip"):
        first = await server.ask("GET", "/", accept_encoding=encoding)
        tag = first.headers["etag"]
        assert re.fullmatch(r'"[0-9a-f]{32}(-gzip)?"', tag)
        for named in (tag, f'"other", W/{tag}', "*"):
            again = await server.ask("GET", "/", accept_encoding=encoding, if_none_match=named)
            assert (again.status, again.body) == (304, b"")
            assert "content-length" not in again.headers
            assert again.headers["etag"] == tag
            assert again.headers["content-security-policy"] == POLICY
        other = await server.ask("GET", "/", accept_encoding=encoding, if_none_match='"other"')
        assert (other.status, other.body) == (200, first.body)


@pytest.mark.parametrize(
    ("accepted", "gzips"),
    [
        ("", False),
        ("gzip", True),
        ("GZIP;q=0.5", True),
        ("br, gzip ; q=0", False),
        ("gzip;q=0.000, *", False),
        ("*", True),
        ("*;q=0", False),
        ("identity", False),
        (";;,,=", False),
    ],
)
def test_which_clients_allow_compression(accepted: str, gzips: bool) -> None:
    assert files.accepts_gzip(accepted) is gzips


async def test_paths_beside_the_files_are_not_looked_up(server: DirectServer) -> None:
    beside = (FOLDER, f"{FOLDER}../files.py", f"{FOLDER}%2e%2e/files.py")
    others = (f"{FOLDER}main.js", f"/dashboard/{files.SCRIPT}", "/dashboard/0123456789abcdef/")
    for path in (*others, *beside):
        assert (await server.ask("GET", path)).code == "unknown_path"
    assert (await server.ask("POST", "/", {})).code == "wrong_method"


async def test_a_server_without_the_dashboard_leads_to_the_description_of_its_api() -> None:
    async with direct_server(ServerSettings(dashboard=False)) as server:
        root = await server.ask("GET", "/")
        assert (root.status, root.headers["location"]) == (307, "v1/docs")
        assert (await server.ask("GET", "/v1/docs")).status == 200
        for path in PATHS:
            assert path == "/" or (await server.ask("GET", path)).code == "unknown_path"


async def test_the_page_refers_only_to_files_that_are_served(server: DirectServer) -> None:
    page = (await server.ask("GET", "/")).body.decode()
    for address in re.findall(r'(?:src|href)="([^"#]+)"', page):
        assert not re.match(r"[a-z]+:|/", address), "addresses must be relative"
        assert (await server.ask("GET", f"/{address}")).status == 200
        assert address == "v1/docs" or f"/{address}".startswith(FOLDER)
    assert "<style" not in page
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=", page)
