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
import enum
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, assert_type
from uuid import UUID

import attrs
import msgspec
from pydantic import BaseModel

from holdfast import Context, Holdfast, Job, JobHandle, NewJob

app = Holdfast("memory:")


class Colour(enum.Enum):
    RED = "red"


class Order(BaseModel):
    id: UUID
    price: Decimal


@dataclass
class Line:
    name: str


@attrs.define
class Box:
    width: int


class Point(msgspec.Struct):
    x: int


@app.task
def send(to: str, count: int = 1) -> int:
    return count


@app.task(queue="pages", max_attempts=3)
async def fetch(url: str, *, deep: bool = False) -> str:
    return url


@app.task
def copy(ctx: Context, path: str) -> float:
    ctx.log(path)
    ctx.then(send.job("ada"), send.using(delay="1m").job("bob", count=2))
    return 0.5


@app.task(timeout="1m")
async def move(ctx: Context, path: str) -> None:
    ctx.log(path)


@app.task
def pay(order: Order, line: Line, box: Box, point: Point, *, colour: Colour) -> Order:
    return order


@app.task()
async def plan(file: Path, at: datetime, wait: timedelta, id: UUID) -> dict[UUID, Line] | None:
    return None


@app.task(batch=100)
def index(pages: list[str]) -> None: ...


@app.task(batch=100)
def resize(images: list[str], *, contexts: list[Context]) -> list[int]:
    return [len(contexts)]


@app.task(batch=10)
async def store(contexts: list[Context], orders: list[Order]) -> list[Path]:
    return [Path(context.id) for context in contexts]


class Greeter:
    def __call__(self, name: str) -> bytes:
        return name.encode()

    def greet(self, name: str) -> bool:
        return True


greet = app.task(Greeter())
greet_too = app.task(queue="mail")(Greeter().greet)

ORDER = Order(id=UUID(int=1), price=Decimal(1))

assert_type(send.enqueue("ada"), JobHandle[int])
assert_type(send.enqueue("ada").job(), Job | None)
assert_type(send.using(delay="1m").delay("ada", count=2).result(), int)
assert_type(send.using(delay="1m").using(key="a").within(None).enqueue("ada").result("30s"), int)
assert_type(send.handle("some-id").result(), int)
assert_type(send("ada", 2), int)
assert_type(send.job("ada"), NewJob)
assert_type(fetch.enqueue("a", deep=True).result(), str)
pending = assert_type(fetch("a"), Coroutine[Any, Any, str])
assert_type(asyncio.run(fetch.aenqueue("a")), JobHandle[str])
assert_type(copy.enqueue("a").result(), float)
assert_type(copy("a"), float)
assert_type(pay.enqueue(ORDER, Line("a"), Box(1), Point(1), colour=Colour.RED).result(), Order)
assert_type(greet.enqueue("ada").result(), bytes)
assert_type(greet_too.enqueue("ada").result(), bool)
assert_type(resize.enqueue("an image").result(), int)
assert_type(resize(["an image"]), list[int])
assert_type(store.using(priority=1).enqueue(ORDER).result(), Path)
move.job(path="a")
index.enqueue("a page")
index(["a page"])
assert_type(send.enqueue_many([("ada",), {"to": "bob"}]), list[JobHandle[int]])


async def calls(ctx: Context) -> None:
    assert_type(copy(ctx, "a"), float)
    handle = assert_type(await fetch.using(priority=1).aenqueue("a"), JobHandle[str])
    assert_type(await handle.aresult("30s"), str)
    assert_type(await send.handle("some-id").aresult(), int)
    assert_type(await store.aenqueue_many([(ORDER,)]), list[JobHandle[Path]])
    planned = await plan.aenqueue(Path("a"), datetime.max, timedelta(1), UUID(int=1))
    assert_type(await planned.aresult(), dict[UUID, Line] | None)
    await app.enqueue_many([send.job("ada"), fetch.job("a", deep=True)])
    await fetch.aenqueue(b"a")  # wrong
    await fetch.using(delay="1m").aenqueue("a", shallow=True)  # wrong
    (await fetch.aenqueue("a")).aresult(timeout=[])  # wrong
    await plan.aenqueue("a", datetime.max, timedelta(1), UUID(int=1))  # wrong
    ctx.then(send)  # wrong


send.enqueue(1, 2, 3)  # wrong
send.enqueue()  # wrong
send.enqueue("ada", counts=2)  # wrong
send.enqueue("ada").result() + "x"  # wrong
send.using(priority=1).enqueue(b"ada")  # wrong
send.using(colour="red")  # wrong
send.using(priority="high")  # wrong
send.within(None).enqueue(2)  # wrong
send.delay(2)  # wrong
send.job(2)  # wrong
send.handle(2)  # wrong
send.enqueue_many(["ada"])  # wrong
send(2)  # wrong
fetch.enqueue("a", True)  # wrong
asyncio.run(fetch.aenqueue(2))  # wrong
copy.enqueue(2)  # wrong
copy(2)  # wrong
move.enqueue()  # wrong
pay.enqueue(Line("a"), Line("a"), Box(1), Point(1), colour=Colour.RED)  # wrong
pay.enqueue(ORDER, Line("a"), Box(1), Point(1), colour="red")  # wrong
pay.enqueue(ORDER, Line("a"), Box(1), Point(1), colour=Colour.RED).result().name  # wrong
greet.enqueue(2)  # wrong
greet_too.enqueue(2)  # wrong
index.enqueue(["a page"])  # wrong
index("a page")  # wrong
resize.enqueue(2)  # wrong
resize.enqueue("an image").result().upper()  # wrong
store.enqueue("an order")  # wrong
app.task(colour="red")  # wrong
app.task(batch="ten")  # wrong
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
