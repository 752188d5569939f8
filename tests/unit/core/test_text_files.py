"""Errors of files name the remedy."""

import os
from pathlib import Path

import pytest

from holdfast.core.text import not_read, not_written


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none" / "file"
    with pytest.raises(OSError, match=r"No such file|Is a directory") as caught:
        path.write_text("x")
    assert not_written(path, caught.value) == (
        f"{path} cannot be written: there is no folder {path.parent}; create it first"
    )


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path, says in ((tmp_path / "none", "check the path"), (tmp_path, "give a file")):
        with pytest.raises(OSError, match=r"No such file|Is a directory") as caught:
            path.read_text()
        assert not_read(path, caught.value).startswith(f"{path} cannot be read: ")
        assert not_read(path, caught.value).endswith(says)


def test_a_denied_file_and_other_errors() -> None:
    denied = PermissionError(13, "Permission denied")
    assert "change the permissions of the folder" in not_written("/a/b", denied)
    assert "run as its owner" in not_read("/a/b", denied)
    full = OSError(28, os.strerror(28))
    assert not_written("/a/b", full) == "/a/b cannot be written: No space left on device"
