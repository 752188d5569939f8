"""Troubleshooting: every error can be looked up, and the messages that it quotes exist."""

import re

import pytest

from holdfast import errors
from tests.sources import PACKAGE, ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
MESSAGES = ("The worker does not start", "The worker says …")


@pytest.mark.parametrize("error", errors.BY_CODE.values(), ids=lambda error: error.code)
def test_every_error_can_be_looked_up(error: type[errors.HoldfastError]) -> None:
    rows = [row.split(" | ") for row in SECTIONS["Error codes"].splitlines() if "`" in row]
    [(codes, names, remedy)] = [row for row in rows if f"`{error.code}`" in row[0]]
    listed = dict(zip(re.findall(r"`(\w+)`", codes), re.findall(r"`(\w+)`", names), strict=True))
    assert listed[error.code] == error.__name__
    assert len(remedy) > len("[…](#…)")


def quoted() -> list[str]:
    rows = "".join(SECTIONS[name] for name in MESSAGES)
    return re.findall(r"^\| `([^`]+)`", rows, re.MULTILINE)


@pytest.mark.parametrize("message", quoted())
def test_a_quoted_message_exists(message: str) -> None:
    code = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    # Messages are split over lines of code, and contain values.
    code = re.sub(r'"\s*\n\s*f?"', "", code)
    values = r"(%\S+|\{[^}]*\}+|\n)+"
    parts = [re.sub(r"\s+", " ", part) for part in message.split("…") if part.strip(" :.")]
    assert parts
    assert re.search(values.join(map(re.escape, parts)), code), f"no message is like {message}"


def test_every_symptom_is_in_the_table_at_the_top() -> None:
    table = PAGE.partition("\n## ")[0]
    linked = set(re.findall(r"\]\(#([\w-]+)\)", table))
    named = {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in SECTIONS}
    assert named == linked
