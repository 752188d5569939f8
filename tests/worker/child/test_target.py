"""Targets of workers, valid and invalid."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.errors import ConfigError
from holdfast.worker.child.handlers import load_target

APP = """
from types import SimpleNamespace
app = SimpleNamespace(handlers={}, name=__name__)
inner = SimpleNamespace(app=app)
number = 5
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    (tmp_path / "sample_tasks.py").write_text(APP)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def name_of(target: str) -> str:
    return str(cast("SimpleNamespace", load_target(target)).name)


def test_a_module_in_the_current_folder(folder: Path) -> None:
    assert name_of("sample_tasks:app") == "sample_tasks"
    assert name_of("sample_tasks:inner.app") == "sample_tasks"


def test_a_file_beside_another_it_imports(folder: Path) -> None:
    below = folder / "below"
    below.mkdir()
    (below / "sample_helper.py").write_text(APP)
    (below / "sample_main.py").write_text("from sample_helper import app\n")
    assert name_of("below/sample_main.py:app") == "sample_helper"
    assert load_target(f"{below}/sample_main.py:app") is load_target("below/sample_main.py:app")


def test_a_package_without_a_file_ending(folder: Path) -> None:
    (folder / "sample_package").mkdir()
    (folder / "sample_package" / "tasks.py").write_text(APP)
    assert name_of("sample_package.tasks:app") == "sample_package.tasks"


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("", "module:attribute"),
        ("sample_tasks", "module:attribute"),
        (":app", "module:attribute"),
        ("sample_tasks:", "module:attribute"),
        ("no_such_module:app", "no module named 'no_such_module'"),
        ("no_such_module.below:app", "no module named 'no_such_module'"),
        ("sample_tasks.below:app", "no module named 'sample_tasks.below'"),
        ("no/such/file.py:app", "no file 'no/such/file.py'"),
        ("sample_tasks:nothing", "no 'nothing'; there is app"),
        ("sample_tasks:number", "is an int, not a Holdfast application; there is app"),
        ("./sample_tasks:app", "not the name of a module"),
        (".sample_tasks:app", "not the name of a module"),
    ],
)
def test_a_wrong_target_is_named_with_the_remedy(target: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text.replace(".", r"\.")):
        load_target(target)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import no_such_dependency", ModuleNotFoundError),
        ("1 / 0", ZeroDivisionError),
        ("def", SyntaxError),
        ("raise SystemExit(3)", SystemExit),
        ("raise ValueError('mine')", ValueError),
    ],
)
def test_exceptions_of_the_application_are_passed_on(
    folder: Path, source: str, error: type[BaseException]
) -> None:
    (folder / "sample_broken.py").write_text(source)
    for target in ("sample_broken:app", "sample_broken.py:app"):
        with pytest.raises(error):
            load_target(target)
        assert "sample_broken" not in sys.modules
