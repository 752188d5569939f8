"""Every page is in the navigation of the documentation site, and faults of the site are found."""

from pathlib import Path

import pytest

from tests.docs.site import (
    DECISIONS,
    SiteError,
    links,
    navigation,
    navigation_faults,
    pages_in,
    site_faults,
    stage,
)
from tests.sources import ROOT


def test_every_page_is_in_the_navigation() -> None:
    assert list(navigation_faults(navigation(), pages_in(ROOT))) == []


def test_the_page_of_decisions_lists_all_of_them() -> None:
    decisions = [path.name for path in sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))]
    assert sorted(links((ROOT / DECISIONS).read_text())) == decisions


def test_a_page_that_is_missing_repeated_or_invented_is_found() -> None:
    pages = {"README.md", "docs/tasks.md", "docs/adr/0001-one.md"}
    shown = ["README.md", "README.md", "docs/gone.md"]
    faults = list(navigation_faults(shown, pages))
    assert [fault.partition(":")[0] for fault in faults] == [
        "docs/tasks.md is not in the navigation",
        "zensical.toml has docs/gone.md in `nav`, but there is no such page",
        "zensical.toml has README.md in `nav` more than once",
    ]


def test_links_are_read_and_code_is_not() -> None:
    text = (
        "[a](a.md#x) `[b](b.md)` [c](https://c.example)\n```\n[d](d.md)\n```\n[e](#e) ![f](f.png)"
    )
    assert links(text) == ["a.md", "f.png"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "docs").mkdir(parents=True)
    (root / "deploy").mkdir()
    (root / "deploy" / "unit.service").write_text("[Service]\n")
    (root / "private.txt").write_text("nobody links to this")
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/page.md"):
        (root / name).write_text("# A page\n")
    return root


def test_a_linked_file_outside_the_docs_is_staged(repository: Path, tmp_path: Path) -> None:
    (repository / "docs" / "page.md").write_text("[unit](../deploy/unit.service)")
    stage(repository, tmp_path / "pages")
    assert (tmp_path / "pages" / "deploy" / "unit.service").exists()
    assert (tmp_path / "pages" / "docs" / "page.md").exists()
    assert not (tmp_path / "pages" / "private.txt").exists()


@pytest.mark.parametrize("link", ["../deploy", "gone.md"])
def test_a_link_that_the_site_cannot_open_is_found(
    repository: Path, tmp_path: Path, link: str
) -> None:
    (repository / "docs" / "page.md").write_text(f"[it]({link})")
    with pytest.raises(SiteError, match=r"docs/page\.md"):
        stage(repository, tmp_path / "pages")


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="gone.html">x</a>', "a.html: dead link gone.html"),
        ('<a href="b.html#gone">x</a>', "a.html: dead link b.html#gone: no such heading"),
        ('<a href="#gone">x</a>', "a.html: dead link #gone: no such heading"),
        ('<img src="gone.png">', "a.html: dead link gone.png"),
        ('<script src="https://h.example/s.js"></script>', "a.html: loads https://h.example/s.js"),
        ('<link rel="stylesheet" href="//h.example/s">', "a.html: loads //h.example/s"),
        (
            "<p>text:\n- one\n- two</p>",
            "a.html: not understood, a blank line is missing: - one",
        ),
    ],
)
def test_a_fault_of_a_built_page_is_found(tmp_path: Path, body: str, fault: str) -> None:
    (tmp_path / "a.html").write_text(body)
    (tmp_path / "b.html").write_text('<h2 id="here">x</h2>')
    assert list(site_faults(tmp_path)) == [fault]


def test_a_good_page_has_no_fault(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">x</a><a href="https://h.example">x</a><p>a - b</p>'
        "<pre>- one</pre><link rel=canonical href='https://h.example/a'>"
    )
    (tmp_path / "b.html").write_text('<h2 id="here">x</h2>')
    assert list(site_faults(tmp_path)) == []
