"""The commands of docs/install.md, run in a copy of what a package is made of."""

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from holdfast import __version__
from holdfast.conformance.private_server import ServiceUnavailable
from tests.deploy.environments import write_python
from tests.deploy.test_image import UNREACHABLE
from tests.services import needed
from tests.sources import ROOT

PAGE = ROOT / "docs" / "install.md"
BLOCKS = dict(re.findall(r"(?ms)^## ([^\n]*)\n(?:(?!^## ).)*?^```sh\n(.*?)^```", PAGE.read_text()))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("title", ["From a clone", "From a wheel"])
def test_the_commands_install_a_working_program(title: str, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "src", clone / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone / name)
    kept = {name: each for name, each in os.environ.items() if not name.startswith("HOLDFAST_")}
    # Bytecode stays in the environment, which is deleted.
    for name in ("PYTHONPATH", "PYTHONPYCACHEPREFIX", "VIRTUAL_ENV"):
        kept.pop(name, None)
    commands = BLOCKS[title].replace("/opt/jobs", "~/jobs").replace("~/", f"{tmp_path}/")
    # Compiling all packages takes longer than everything else, and few modules of them are used.
    quick = {"PIP_NO_COMPILE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment = {**kept, **quick, "PATH": f"{tmp_path / 'python'}:{os.environ['PATH']}"}
    if title == "From a clone":
        # The wheel is installed with what it needs, as is the bare package in `tests/pythons`. Here
        # the packages of this environment serve, once the commands have run.
        environment["PIP_NO_DEPS"] = "1"
    (tmp_path / "python").mkdir()
    write_python(tmp_path / "python" / "python3")
    with needed("The package index", "package-index"):
        run(commands, clone, environment)
    if title == "From a clone":
        environment["PYTHONPATH"] = sysconfig.get_path("platlib")
    program = tmp_path / "jobs" / "bin" / "holdfast"
    imported = f"{program.with_name('python')} -c 'import holdfast; print(holdfast.__file__)'"
    assert run(imported, tmp_path, environment).startswith(f"{tmp_path / 'jobs'}/")
    assert run(f"{program} --version", tmp_path, environment) == f"holdfast {__version__}\n"
    assert run(f"{program} enqueue --id hello -- echo hello", tmp_path, environment) == "hello\n"
    if title == "From a wheel":
        assert "server" in commands
        found = run(
            f"{program.with_name('python')} -c 'import uvicorn, asyncpg'", clone, environment
        )
        assert found == ""


def run(commands: str, folder: Path, environment: dict[str, str]) -> str:
    """The output of the commands."""
    ran = subprocess.run(
        ["sh", "-ec", commands],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    said = ran.stdout + ran.stderr
    if ran.returncode != 0 and any(each in said for each in UNREACHABLE):
        raise ServiceUnavailable(f"the package index cannot be reached: {said[-300:]}")
    assert ran.returncode == 0, said
    return ran.stdout
