"""The log that jobs under test write: a line at the start, heartbeats, and a line at the end.

Each line is one appending write, so that a kill loses nothing. This file is also the program of the
command jobs, which is why it imports next to nothing.
"""

import os
import subprocess
import sys
import time
from typing import Any

HOME = "HOLDFAST_CHAOS_HOME"
"""The environment variable of the run's folder; it also marks every process of the run."""
BEAT_S = 0.05
_GENERATIONS_MAX = 6


def path() -> str:
    return os.path.join(os.environ[HOME], "runs.jsonl")  # noqa: PTH118 (starts much faster)


class RunLog:
    """One run of a job, which starts when this is created. A run whose lines stop has died."""

    def __init__(self, kind: str, job: str, token: int, attempt: int) -> None:
        self._file = os.open(path(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._who = f'"job":"{job}","token":{token}'
        self._write(f'"begin",{self._who},"attempt":{attempt},"kind":"{kind}","pids":{ancestry()}')

    def beat(self) -> None:
        self._write(f'"beat",{self._who}')

    def end(self) -> None:
        self._write(f'"end",{self._who}')
        self.leave()

    def leave(self) -> None:
        os.close(self._file)

    def _write(self, text: str) -> None:
        os.write(self._file, f'{{"what":{text},"at_ns":{time.monotonic_ns()}}}\n'.encode())


def ancestry() -> list[int]:
    """The pids of this process and its ancestors: the death of any of them explains its own."""
    found = [os.getpid()]
    while len(found) < _GENERATIONS_MAX and found[-1] > 1:
        try:
            with open(f"/proc/{found[-1]}/stat", "rb") as file:  # noqa: PTH123 (as above)
                text = file.read()
        except OSError:
            break
        found.append(int(text[text.rindex(b")") + 2 :].split()[1]))
    return found


def main(arguments: list[str]) -> None:
    """`SECONDS [daemon]`: run for that long, optionally beside a process in a session of its
    own."""
    seconds = float(arguments[0])
    environment = os.environ
    run = RunLog(
        "command",
        environment["HOLDFAST_JOB_ID"],
        int(environment["HOLDFAST_LEASE_TOKEN"]),
        int(environment["HOLDFAST_ATTEMPT"]),
    )
    daemon: subprocess.Popen[Any] | None = None
    if arguments[1:]:
        daemon = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    ends_at = time.monotonic() + seconds
    while (left := ends_at - time.monotonic()) > 0:
        time.sleep(min(left, BEAT_S))
        run.beat()
    if daemon is not None:
        daemon.kill()
        daemon.wait()
    run.end()


if __name__ == "__main__":
    main(sys.argv[1:])
