"""Results are inserted at the top of their table; existing rows stay."""

from pathlib import Path

import pytest

from torture import results


def test_a_row_is_added_under_its_heading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "torture.md"
    page.write_text("# A\n\n<!-- kill -9 -->\n\n# B\n\n<!-- simulation -->\n\nend\n")
    monkeypatch.setattr(results, "PAGE", page)
    results.record("simulation", {"engine": "sqlite", "operations": 12_345, "seed": 1})
    results.record("simulation", {"engine": "memory", "seconds": 2.6, "seed": 2})
    before, _, table = page.read_text().partition("<!-- simulation -->\n")
    assert before == "# A\n\n<!-- kill -9 -->\n\n# B\n\n"
    head, rule, newer, older, *rest = table.splitlines()
    assert head.startswith("| date | machine | engine | seeds |")
    assert rule.count("---") == head.count("|") - 1 == newer.count("|") - 1
    assert "| memory |" in newer
    assert "| 3 |" in newer
    assert "| sqlite |" in older
    assert "| 12,345 |" in older
    assert rest == ["", "end"]


def test_the_page_has_a_table_for_every_kind_of_run() -> None:
    text = results.PAGE.read_text()
    assert all(f"<!-- {heading} -->\n" in text for heading in results.COLUMNS)
