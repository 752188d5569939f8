"""Tasks and a handler of dead letters for a worker on SQS; each writes what it got."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import msgspec

from holdfast import Context, DeadLetter, Holdfast

app = Holdfast("memory:")


def write(folder: str, word: str, **fields: Any) -> None:
    with (Path(folder) / "journal.jsonl").open("a") as file:
        file.write(json.dumps({"word": word, **fields}) + "\n")


@app.task(name="show")
def show(folder: str, ctx: Context) -> str:
    print("printed")
    ctx.progress(0.5, "half")
    ctx.checkpoint({"at": 1})
    write(folder, "show", sqs=msgspec.structs.asdict(ctx.sqs) if ctx.sqs else None)
    return "a result"


@app.task(name="fail")
def fail(folder: str) -> None:
    raise LookupError(f"nothing in {folder}")


@app.task(name="long", timeout="1500ms")
def long(folder: str, ctx: Context) -> None:
    ctx.more_time("1m")
    time.sleep(2.5)
    write(folder, "long")


@app.task(name="along", timeout="1s")
async def along(folder: str, ctx: Context) -> None:
    ctx.more_time("1m")
    await asyncio.sleep(1.5)
    write(folder, "along")


@app.on_dead_letter()
def bury(letter: DeadLetter) -> None:
    write(
        letter.value["folder"],
        "letter",
        poison=letter.poison,
        reason=letter.reason,
        origin=letter.origin,
        attempts=letter.attempts,
        failures=[failure.message for failure in letter.failures],
    )
