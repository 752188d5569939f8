"""The files of the dashboard: vendored ones are the pinned ones, own ones are small, and all work
without a build step or another host."""

import gzip
import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast.server.dashboard.files import FIRST_MODULES, WEB, needed_modules

VENDOR = WEB / "vendor"
MODULES = sorted(WEB.rglob("*.js"))
OWN = [path for path in MODULES if VENDOR not in path.parents]
LINES_MAX = 250
OVERVIEW_MAX, PAGE_MAX, ALL_MAX = 100 * 1024, 40 * 1024, 230 * 1024

_IMPORT = re.compile(
    r"""(?:\bimport\b[^"'`;()]*?|\bexport\b[^"'`;()]*?\bfrom\b\s*|\bimport\(\s*)["'`]([^"'`]+)["'`]"""
)
_UNSAFE = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|Function\(")


def _name(path: Path) -> str:
    return path.relative_to(WEB).as_posix()


def test_vendored_files_are_the_pinned_ones() -> None:
    """Each file has its version, licence and hash in `vendor.json`, and no other file is there."""
    pinned = json.loads((VENDOR / "vendor.json").read_bytes())
    for entry in pinned:
        found = hashlib.sha256((VENDOR / entry["file"]).read_bytes()).hexdigest()
        assert found == entry["sha256"], entry["file"]
        assert all(entry[name] for name in ("name", "version", "licence", "upstream"))
        assert (VENDOR / entry["licence_file"]).stat().st_size > 500
    known = {entry["file"] for entry in pinned} | {entry["licence_file"] for entry in pinned}
    assert {path.name for path in VENDOR.iterdir()} == known | {"vendor.json"}


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_imports_are_relative_and_exist(path: Path) -> None:
    """A bare import would need an import map, and a remote one another host."""
    for target in _IMPORT.findall(path.read_text()):
        assert target.startswith(("./", "../")), target
        found = (path.parent / target).resolve()
        assert found.is_relative_to(WEB.resolve()), target
        assert found.is_file(), target


def test_the_search_for_imports_finds_them() -> None:
    """Every form of an import in the files, and none in other strings."""
    text = """import{a}from"x1";import y from 'x2';\nimport {\n  b,\n} from "x3";export * from "x4";
    load: () => import("x5"), import "x6"; const z = "not";"""
    assert _IMPORT.findall(text) == ["x1", "x2", "x3", "x4", "x5", "x6"]
    assert _IMPORT.findall((VENDOR / "preact-hooks.js").read_text()) == ["./preact.js"]


@pytest.mark.parametrize("path", OWN, ids=_name)
def test_own_modules_are_small_and_safe(path: Path) -> None:
    """Short enough to read at once; no text becomes HTML or code."""
    text = path.read_text()
    assert len(text.splitlines()) <= LINES_MAX
    assert not _UNSAFE.search(text)


def test_index_has_no_inline_script_or_style_and_only_relative_addresses() -> None:
    """As the content security policy and a proxy's path prefix demand."""
    text = (WEB / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text)
    addresses = re.findall(r'(?:src|href)="([^"]*)"', text)
    for address in addresses:
        assert not re.match(r"/|[a-z]+:", address), address
        if address.startswith("dashboard/"):
            assert (WEB / address.removeprefix("dashboard/")).is_file(), address
    sheets = {f"dashboard/{_name(path)}" for path in WEB.rglob("*.css")}
    assert sheets <= set(addresses)


def test_little_is_loaded() -> None:
    """As compressed as it is served: the overview with all it needs, what another page adds, and
    every file of the package."""
    always = [WEB / name for name in ("index.html", "icon.svg")]
    always += WEB.rglob("*.css")
    overview = {*always, *_needed(*FIRST_MODULES)}
    assert _compressed(overview) <= OVERVIEW_MAX
    for page in (WEB / "pages").glob("*.js"):
        assert _compressed(_needed(_name(page)) - overview) <= PAGE_MAX, page.name
    assert _compressed(path for path in WEB.rglob("*") if path.is_file()) <= ALL_MAX


def _needed(*modules: str) -> set[Path]:
    """The modules and all that they import at once; pages are imported when they are shown."""
    texts = {_name(path): path.read_text() for path in MODULES}
    return {WEB / name for name in needed_modules(modules, texts)}


def _compressed(files: Iterable[Path]) -> int:
    return sum(len(gzip.compress(path.read_bytes(), 9)) for path in set(files))


def test_what_is_needed_follows_imports() -> None:
    needed = _needed("main.js")
    assert WEB / "vendor/preact.js" in needed
    assert WEB / "pages/jobs.js" not in needed
    texts = {"a.js": 'import "./b/c.js"; import("./late.js")', "b/c.js": 'export * from "../d.js"'}
    assert needed_modules(["a.js"], {**texts, "d.js": 'import "./a.js"'}) == [
        "a.js",
        "b/c.js",
        "d.js",
    ]
