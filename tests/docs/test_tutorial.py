"""The tutorial can be followed: its own text is played in an empty folder with real processes."""

import sys
from pathlib import Path

import pytest

from tests.docs.player import Player
from tests.sources import ROOT


@pytest.mark.timeout(400)
def test_the_tutorial_can_be_followed(tmp_path: Path, empty_pg_dsn: str) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    page = (ROOT / "docs" / "tutorial.md").read_text()
    player = Player(
        folder, Path(sys.executable).parent, {"postgresql://localhost/shop": empty_pg_dsn}
    )
    player.play(page)
    assert (folder / "outbox" / "order-300.txt").exists(), "the last step did not run"
