"""Text for people."""

import pytest

from holdfast.core.text import counted


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs"), (1_000, "1,000 jobs")]
)
def test_how_many(count: int, text: str) -> None:
    assert counted(count, "job") == text
