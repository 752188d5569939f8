"""The files of the dashboard: vendored ones are the pinned ones, own ones are small, and all work
without a build step or another host."""

import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest

from holdfast.server.dashboard.bundle import join_modules, join_styles
from holdfast.server.dashboard.files import OPERATIONS, WEB
from tests.server.direct_server import direct_server
from tests.server.sqs.clients.environments import NODE

VENDOR = WEB / "vendor"
MODULES = sorted(WEB.rglob("*.js"))
OWN = [path for path in MODULES if VENDOR not in path.parents]
LINES_MAX = 250
ALL_BYTES_MAX = 150_000

_IMPORT = re.compile(
    r"""(?:\bimport\b[^"'`;()]*?|\bexport\b[^"'`;()]*?\bfrom\b\s*|\bimport\(\s*)["'`]([^"'`]+)["'`]"""
)
_UNSAFE = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|Function\(")

# A backtick or a brace in a comment, a string or a regular expression means nothing.
_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
    r"""|(?:(?<=[(,=:\[!&|?;\n])|(?<=return)|(?<=[(,=:\[!&|?;] ))"""
    r"""/(?![*/])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/"""
    r"""|(?P<tag>\w*)`|[{}]""",
    re.DOTALL,
)
_TEXT = re.compile(r"(?:\\.|\$(?!\{)|[^`\\$])*", re.DOTALL)


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


async def test_little_is_loaded() -> None:
    """All files of the page together, as compressed as they are served."""
    async with direct_server() as server:
        answers = [
            await server.ask("GET", each.path, accept_encoding="gzip") for each in OPERATIONS
        ]
    assert all(answer.headers["content-encoding"] == "gzip" for answer in answers)
    assert sum(len(answer.body) for answer in answers) <= ALL_BYTES_MAX


def test_modules_are_joined() -> None:
    """Every form of an import and an export."""
    texts = {
        "main.js": """// A comment.
import { a, b as c } from "./lib/one.js";
import d from "./lib/two.js";
import {
  e,
} from "./lib/three.js";
const own = "$";
report(a, c, d(), e, own, import.meta.url);
import("./pages/late.js").then((late) => report(late.default, late.f));
""",
        "lib/one.js": "export const a = 1;\nexport function b() {}\nexport default class {}\n",
        "lib/two.js": 'export { n as unused, };\nconst n = 2;\nexport default () => "two";\n',
        "lib/three.js": 'export * from "./four.js";\n',
        "lib/four.js": "const x=3;export{x as e};",
        "pages/late.js": "export default function Late() {}\nexport async function f() {}\n",
    }
    script = join_modules(texts, "main.js")
    program = f"""
const seen = [];
globalThis.report = (...values) => seen.push(...values.map((each) => each.name ?? each));
{script}
setTimeout(() => console.log(JSON.stringify(seen)));
"""
    ran = subprocess.run(
        [NODE, "--input-type=module", "-e", program], capture_output=True, text=True, check=True
    )
    assert "comment" not in script
    found = json.loads(ran.stdout)
    assert found[5].endswith("main.js")
    assert found[:5] + found[6:] == [1, "b", "two", 3, "$", "Late", "f"]


@pytest.mark.parametrize("text", ['import "./x.js";', "export let a = 1;", "export var b;"])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(AssertionError, match=r"main\.js: an import or export"):
        join_modules({"main.js": text}, "main.js")


def test_style_sheets_are_joined_in_the_order_of_the_page() -> None:
    page = '<link rel="stylesheet" href="dashboard/b.css"><link href="dashboard/a.css">'
    assert join_styles({"a.css": "a {}", "b.css": "b {}"}, page) == "b {}\na {}"


@pytest.mark.parametrize("path", OWN, ids=_name)
def test_no_text_of_the_page_looks_like_a_comment(path: Path) -> None:
    """Lines of comments are left out, and must not be part of a template."""
    text = path.read_text()
    for found in re.finditer(r"(?m)^[ \t]*//", text):
        assert len(re.findall(r"(?<!\\)`", text[: found.start()])) % 2 == 0


def _texts(script: str) -> list[tuple[str, str]]:
    """The parts of template literals, each with the name of its tag."""
    found: list[tuple[str, str]] = []
    open_tags: list[str | None] = []
    at = 0

    def read(tag: str, at: int) -> int:
        part = _TEXT.match(script, at)
        assert part is not None
        found.append((tag, part[0]))
        if script[part.end()] == "`":
            return part.end() + 1
        open_tags.append(tag)
        return part.end() + len("${")

    while token := _TOKEN.search(script, at):
        at = token.end()
        if token["tag"] is not None:
            at = read(token["tag"] or "plain", at)
        elif token[0] == "{":
            open_tags.append(None)
        elif token[0] == "}" and (tag := open_tags.pop()) is not None:
            at = read(tag, at)
    assert not open_tags
    return found


@pytest.mark.parametrize("path", OWN, ids=_name)
def test_no_text_of_the_page_depends_on_indentation(path: Path) -> None:
    """Only HTML has several lines, and none of them in an attribute."""
    for tag, text in _texts(path.read_text()):
        assert "\n" not in text or (tag == "html" and not re.search(r'="[^"]*\n', text))


def test_templates_are_found() -> None:
    script = r"f(/`/, '`'); const a = html`<p>${b.map((c) => { return `x${c}\`y` })}</p>`; // `"
    found = [("html", "<p>"), ("plain", "x"), ("plain", r"\`y"), ("html", "</p>")]
    assert _texts(script) == found
