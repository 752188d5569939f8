"""Type checkers know the signature of a task, for enqueueing it and for calling it directly."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A line with `# wrong` must be an error; no other line may be one.
USES = """
import asyncio
from collections.abc import Coroutine
from typing import Any, assert_type

from holdfast import Context, Holdfast, JobHandle

app = Holdfast("memory:")


@app.task
def send(to: str, count: int = 1) -> int:
    return count


@app.task(queue="pages", max_attempts=3)
async def fetch(url: str, *, deep: bool = False) -> str:
    return url


@app.task
def copy(ctx: Context, path: str) -> float:
    ctx.log(path)
    return 0.5


@app.task(timeout="1m")
async def move(ctx: Context, path: str) -> None:
    ctx.log(path)


@app.task(batch=100)
def index(pages: list[str]) -> None: ...


@app.task(batch=100)
def resize(images: list[str], *, contexts: list[Context]) -> list[int]:
    return [len(contexts)]


assert_type(send.enqueue("ada"), JobHandle[int])
assert_type(send.using(delay="1m").delay("ada", count=2).result(), int)
assert_type(send("ada", 2), int)
assert_type(fetch.enqueue("a", deep=True).result(), str)
pending = assert_type(fetch("a"), Coroutine[Any, Any, str])
assert_type(asyncio.run(fetch.aenqueue("a")), JobHandle[str])
assert_type(copy.enqueue("a").result(), float)
assert_type(copy("a"), float)
move.job(path="a")
index.enqueue("a page")
index(["a page"])
resize.enqueue("an image")
send.enqueue_many([("ada",), {"to": "bob"}])


def calls(ctx: Context) -> None:
    assert_type(copy(ctx, "a"), float)


send.enqueue(1, 2, 3)  # wrong
send.enqueue()  # wrong
send.enqueue("ada", counts=2)  # wrong
send.using(priority=1).enqueue(b"ada")  # wrong
send.within(None).enqueue(2)  # wrong
send.delay(2)  # wrong
send.job(2)  # wrong
send(2)  # wrong
fetch.enqueue("a", True)  # wrong
asyncio.run(fetch.aenqueue(2))  # wrong
copy.enqueue(2)  # wrong
copy(2)  # wrong
move.enqueue()  # wrong
index.enqueue(["a page"])  # wrong
index("a page")  # wrong
app.task(colour="red")  # wrong
"""


@pytest.fixture
def uses(tmp_path: Path) -> Path:
    path = tmp_path / "uses.py"
    path.write_text(USES)
    return path


def wrong_lines() -> set[int]:
    return {number for number, line in enumerate(USES.split("\n"), 1) if "# wrong" in line}


def test_mypy(uses: Path) -> None:
    # With the project's own settings, so that its cache serves.
    line = [sys.executable, "-m", "mypy", "--output", "json", str(uses)]
    ran = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    found = [json.loads(text) for text in ran.stdout.splitlines() if text.startswith("{")]
    errors = {each["line"]: each["message"] for each in found if each["severity"] == "error"}
    assert set(errors) == wrong_lines(), ran


def test_basedpyright(uses: Path) -> None:
    options = ["--outputjson", "--level", "error", "--pythonpath", sys.executable]
    line = [sys.executable, "-m", "basedpyright", *options, str(uses)]
    ran = subprocess.run(line, cwd=uses.parent, capture_output=True, text=True, check=False)
    found = json.loads(ran.stdout)["generalDiagnostics"]
    errors = {each["range"]["start"]["line"] + 1: each["message"] for each in found}
    assert set(errors) == wrong_lines(), errors
