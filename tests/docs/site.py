"""Builds the documentation site with Zensical, and checks it: `./hf docs`, or in `./hf check`.

Pages are staged with the layout of the repository, together with the files that they link to. So a
relative link means the same on the site and in the repository.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "zensical.toml"
SITE = ROOT / ".hf" / "site"
DECISIONS = "docs/adr/README.md"
"""The page that lists the decisions. They are not in the navigation one by one."""

# The theme loads this script from another host, so that search works without a web server.
_REMOTE_SHIM = "https://unpkg.com/iframe-worker/shim"
_SHIM = Path(__file__).with_name("folder_search.js")

_HTTP = "docs/http.html"
_REFERENCES = (_HTTP, "docs/reference/python.html")

_CODE = re.compile(r"(?ms)^ *```.*?^ *```|`[^`\n]*`")
_LINK = re.compile(r"\]\(<?([^)\s>]+)")
_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
_FOLLOWED = {"a": "href"} | _LOADED
_UNREAD_BLOCK = re.compile(r"(?m)^ *(- |\* |\d+\. |\|[ -]|```)")


def main() -> int:
    """Build the site and print its faults. Return the exit status."""
    try:
        start = build(SITE)
    except SiteError as error:
        print(f"the documentation site is wrong:\n{error}")
        return 1
    print(f"built the documentation: {start.relative_to(ROOT)}")
    return 0


class SiteError(Exception):
    """The text has one fault per line."""


def build(site: Path) -> Path:
    """Build the site in a folder, which is emptied first, and return the path of its start page.
    Raise SiteError if anything is wrong with it."""
    _require([*navigation_faults(navigation(), pages_in(ROOT))])
    shutil.rmtree(site, ignore_errors=True)
    pages, html = site / "pages", site / "html"
    pages.mkdir(parents=True)
    stage(ROOT, pages)
    shutil.copy(CONFIG, site / CONFIG.name)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    run = subprocess.run(command, cwd=site, capture_output=True, text=True, check=False)
    _require([run.stdout + run.stderr] if run.returncode else [])
    _keep_local(html)
    _rank_guides_first(html / "search.js")
    _require([*site_faults(html)])
    return html / "index.html"


def _require(faults: list[str]) -> None:
    if faults:
        raise SiteError("\n".join(faults))


def pages_in(root: Path) -> set[str]:
    """The paths of all pages of the site, relative to the repository."""
    found = {path.relative_to(root).as_posix() for path in root.glob("docs/**/*.md")}
    return found | {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"}


def navigation() -> list[str]:
    """The pages in the navigation, in its order."""
    return list(_paths(tomllib.loads(CONFIG.read_text())["project"]["nav"]))


def _paths(entry: object) -> Iterator[str]:
    match entry:
        case str():
            yield entry
        case list():
            for each in entry:
                yield from _paths(each)
        case dict():
            yield from _paths(list(entry.values()))
        case _:
            raise TypeError(f"zensical.toml has {entry!r} in nav: expected a page or a section")


def navigation_faults(shown: list[str], pages: set[str]) -> Iterator[str]:
    """Pages that the navigation lacks, repeats or invents."""
    decisions = {page for page in pages if re.match(r"docs/adr/\d", page)}
    for page in sorted(pages - decisions - set(shown)):
        yield f"{page} is not in the navigation: add it to `nav` in zensical.toml"
    for page in sorted(set(shown) - pages):
        yield f"zensical.toml has {page} in `nav`, but there is no such page"
    for page in sorted({page for page in shown if shown.count(page) > 1}):
        yield f"zensical.toml has {page} in `nav` more than once"


def stage(root: Path, target: Path) -> None:
    """Copy the pages and what they link to. Raise SiteError for a link to a folder or to nothing,
    since neither can be opened on the site."""
    shutil.copytree(root / "docs", target / "docs")
    faults = []
    for page in sorted(pages_in(root)):
        text = (root / page).read_text()
        (target / page).write_text(text)
        for link in links(text):
            linked = (root / page).parent / link
            if not linked.is_file():
                faults.append(f"{page}: {link} is not a file: link to a page or a file")
                continue
            copy = target / linked.resolve().relative_to(root)
            if not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(linked, copy)
    _require(faults)


def links(text: str) -> list[str]:
    """The relative links of a page, without their fragments."""
    found = (urldefrag(link).url for link in _LINK.findall(_CODE.sub("", text)))
    return [unquote(link) for link in found if link and not urlsplit(link).scheme]


def _keep_local(html: Path) -> None:
    """Serve the script that the theme would load from another host from the site itself."""
    shutil.copy(_SHIM, html / "assets" / _SHIM.name)
    for page in html.rglob("*.html"):
        up = "../" * (len(page.relative_to(html).parts) - 1)
        page.write_text(page.read_text().replace(_REMOTE_SHIM, f"{up}assets/{_SHIM.name}"))


def _rank_guides_first(index: Path) -> None:
    """Let the search find guides before the references, where a word such as "redrive" is in twenty
    names: those of operations and methods count as text, types of the HTTP API not at all."""
    head, text = index.read_text().split("=", 1)
    found = json.loads(text.strip().rstrip(";"))
    titles = {item["location"]: item["title"] for item in found["items"] if item["level"] == 1}
    kept = []
    for item in found["items"]:
        page = item["location"].partition("#")[0]
        if page in _REFERENCES and item["level"] > 2:
            if page == _HTTP and not item["title"].startswith("<code>"):
                continue
            item["text"] = f"<p>{item['title']}</p> {item['text']}"
            item["title"] = titles[page]
        kept.append(item)
    assert 0 < len(kept) < len(found["items"]), "the index of the search has another shape"
    index.write_text(f"{head}={json.dumps({**found, 'items': kept})};")


@dataclass
class _Page(HTMLParser):
    """The ids and links of a built page, and blocks that were taken for text."""

    ids: set[str] = field(default_factory=set)
    followed: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    _inside: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if (target := given.get(_FOLLOWED.get(tag, ""))) is not None:
            self.followed.append(target)
            if tag in _LOADED and given.get("rel") not in {"canonical", "next", "prev"}:
                self.loaded.append(target)
        if tag in {"p", "pre", "script", "style"}:
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and tag == self._inside[-1]:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if self._inside[-1:] == ["p"] and (block := _UNREAD_BLOCK.search(data)):
            self.unread.append(data[block.start() :].splitlines()[0])


def site_faults(html: Path) -> Iterator[str]:
    """Dead links, requests to other hosts, and Markdown that was not understood."""
    read = cache(_read)
    # A server sends the page of an unknown address; its links begin at the root of the site.
    for path in sorted(set(html.rglob("*.html")) - {html / "404.html"}):
        name, page = path.relative_to(html), read(path)
        yield from (f"{name}: not understood, a blank line is missing: {it}" for it in page.unread)
        yield from (f"{name}: loads {it}" for it in page.loaded if _is_remote(it))
        for target in page.followed:
            if urlsplit(target).scheme or _is_remote(target):
                continue
            url, fragment = urldefrag(target)
            linked = (path.parent / unquote(url)).resolve() if url else path
            linked = linked / "index.html" if linked.is_dir() else linked
            if not linked.is_file():
                yield f"{name}: dead link {target}"
            elif (
                fragment and linked.suffix == ".html" and unquote(fragment) not in read(linked).ids
            ):
                yield f"{name}: dead link {target}: no such heading"


def _is_remote(target: str) -> bool:
    return target.startswith(("http:", "https:", "//"))


def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    return page


if __name__ == "__main__":
    sys.exit(main())
