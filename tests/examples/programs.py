"""Runs an example as a user would: its program, a worker, and the command line, on one file."""

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast import Job, JobFilter
from holdfast.app.blocking_app import BlockingHoldfast
from tests import template
from tests.cli.program import command, environment
from tests.sources import ROOT
from tests.wait import wait_until

EXAMPLES = ROOT / "examples"
EVERY = JobFilter()


class Example:
    """One example in a folder of its own, with the variables that it reads."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        self.variables: dict[str, str] = {}
        self._program = EXAMPLES / f"{name}.py"
        self._url = f"sqlite:///{folder / 'holdfast.db'}"

    def run(self, *arguments: str) -> list[str]:
        """The lines that the program prints. Any warning is an error."""
        return self._run(str(self._program), *arguments)

    def command(self, *line: str) -> Any:
        """The JSON that a command prints."""
        return json.loads("\n".join(self._run(template.HOLDFAST, *line, "--json")))

    def _run(self, *words: str) -> list[str]:
        ran = template.run(words, self.folder, self._environment())
        assert (ran.returncode, ran.stderr) == (0, ""), ran
        return ran.stdout.splitlines()

    @contextlib.contextmanager
    def worker(self, *flags: str) -> Iterator[None]:
        """A worker of the example, which ends well."""
        printed = self.folder / "worker.log"
        with (
            printed.open("w") as output,
            subprocess.Popen(
                command("worker", "run", f"{self._program}:app", "--processes", "1", *flags),
                cwd=self.folder,
                env=self._environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
            ) as worker,
        ):
            try:
                wait_until(lambda: worker.poll() is not None or "running on" in printed.read_text())
                assert worker.poll() is None, printed.read_text()
                yield
            finally:
                worker.send_signal(signal.SIGTERM)
                worker.wait(60)
        assert worker.returncode == 0, printed.read_text()

    def jobs(self) -> list[Job]:
        """All jobs, the oldest first."""
        with BlockingHoldfast(self._url) as app:
            ids = [job.id for job in app.find(EVERY, limit=1000).jobs]
            return [job for each in reversed(ids) if (job := app.get(each)) is not None]

    def wait(self) -> list[Job]:
        """All jobs, once they have ended."""
        with BlockingHoldfast(self._url) as app:
            wait_until(lambda: all(job.has_ended for job in app.find(EVERY, limit=1000).jobs))
        return self.jobs()

    def _environment(self) -> dict[str, str]:
        return environment(HOLDFAST_URL=self._url, **self.variables)
