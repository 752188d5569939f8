"""The steps of deploy/Containerfile, replayed in a clean folder: there is no builder of images here
that runs without root, and none that has the base image.

The instructions are read from the file. Absolute paths of the image are below the folder; the base
image is an empty environment of this Python. Only the user is not created.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.conformance.private_server import ServiceUnavailable
from tests.deploy.environments import write_python
from tests.services import needed
from tests.sources import ROOT

CONTAINERFILE = ROOT / "deploy" / "Containerfile"
IMAGE_PATHS = ("/opt/holdfast", "/var/lib/holdfast")
UNREACHABLE = ("Could not find a version", "Connection", "error sending request", "dns error")


class Instruction(NamedTuple):
    """One instruction of a Containerfile, in one line."""

    name: str
    text: str


def stages() -> list[list[Instruction]]:
    """The instructions of each stage, after its FROM."""
    lines = [line for line in CONTAINERFILE.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found: list[list[Instruction]] = []
    for line in filter(None, joined.splitlines()):
        name, _, text = line.partition(" ")
        if name == "FROM":
            found.append([])
        else:
            found[-1].append(Instruction(name, text))
    return found


class Replay:
    """A folder that stands for the image's root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = root / "source"
        self.source.mkdir()
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HOLDFAST_", "PYTHON", "VIRTUAL_ENV"))
        }

    def below(self, text: str) -> str:
        """The text with the image's paths below the folder."""
        for path in IMAGE_PATHS:
            text = text.replace(path, f"{self.root}{path}")
        return text

    def copy(self, text: str) -> None:
        *names, target = text.split()
        for name in names:
            place = self.source / target
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, place)

    def run(self, text: str) -> None:
        ran = subprocess.run(
            ["sh", "-ec", self.below(text)],
            cwd=self.source,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if ran.returncode != 0 and any(each in ran.stdout for each in UNREACHABLE):
            raise ServiceUnavailable(f"the package index cannot be reached: {ran.stdout[-300:]}")
        assert ran.returncode == 0, ran.stdout


@pytest.mark.timeout(300)
def test_the_steps_of_the_image_work_in_a_clean_folder(tmp_path: Path) -> None:
    build, final = stages()
    replay = Replay(tmp_path)
    base = tmp_path / "base"
    write_python(tmp_path / "python")
    subprocess.run([tmp_path / "python", "-m", "venv", base], check=True, capture_output=True)
    replay.environment["PATH"] = f"{base}/bin:{replay.environment['PATH']}"
    with needed("The package index", "package-index"):
        for name, text in build:
            match name:
                case "COPY":
                    replay.copy(text)
                case "RUN":
                    replay.run(text)
                case _:
                    assert (name, text) == ("WORKDIR", "/source")
    serve_until_healthy(replay, final)


def serve_until_healthy(replay: Replay, final: list[Instruction]) -> None:
    """Run what the image runs by default, with another port and on loopback."""
    given = dict(final)
    home = Path(replay.below(given["WORKDIR"]))
    home.mkdir(parents=True)
    installed = Path(replay.below("/opt/holdfast"))
    assert given["COPY"] == "--from=build /opt/holdfast /opt/holdfast"
    assert list(installed.rglob("holdfast/cli/__pycache__/root.*.pyc")), "every start would compile"
    variables = dict(pair.split("=", 1) for pair in shlex.split(replay.below(given["ENV"])))
    path = variables.pop("PATH").replace("$PATH", replay.environment["PATH"])
    environment = {**replay.environment, **variables, "PATH": path, "HOLDFAST_SERVE_PORT": "0"}
    words = [*words_of(given["ENTRYPOINT"]), *words_of(given["CMD"])]
    words = [word.replace("0.0.0.0", "127.0.0.1") for word in words]
    program = shutil.which(words[0], path=path)
    assert program == f"{installed}/bin/holdfast"
    process = subprocess.Popen(
        [program, *words[1:]],
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.send_signal(getattr(signal, given["STOPSIGNAL"]))
        rest = process.stdout.read()
    assert "http://127.0.0.1:" in said, said + rest
    assert process.returncode == 0, said + rest
    assert (home / "jobs.db").exists()


def words_of(text: str) -> list[str]:
    found: list[str] = [word.strip(' "') for word in text.strip("[]").split(",")]
    return found
