"""A task that always fails, and handlers of its dead letters that write what they got."""

import json
import os
import signal
from pathlib import Path

from holdfast import DeadLetter, Holdfast, Release

app = Holdfast("memory:")


@app.task(name="fail", queue="orders")
def fail(folder: str, number: int) -> None:
    raise LookupError(f"no order {number} in {folder}")


@app.on_dead_letter(queue="grave")
async def bury(letter: DeadLetter) -> None:
    folder = Path(letter.value["folder"])
    if (folder / "deaf").exists():
        raise Release("not now", after=0.05)
    if letter.labels.get("deadly") and not (folder / "killed").exists():
        (folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    entry = {
        "id": letter.id,
        "poison": letter.poison,
        "task": letter.task,
        "queue": letter.queue,
        "origin": letter.origin,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "failures": [failure.message for failure in letter.failures],
        "number": letter.value["number"],
    }
    with (folder / "letters").open("a") as file:
        file.write(json.dumps(entry) + "\n")


@app.on_dead_letter(queue="orders")
def bury_in_place(letter: DeadLetter) -> None:
    with (Path(letter.value["folder"]) / "letters").open("a") as file:
        file.write(json.dumps({"id": letter.id, "origin": letter.origin}) + "\n")
