"""Equal failures in the same place have one fingerprint; other failures have another."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from holdfast.core.fingerprint import FRAMES_MAX, fingerprint, frames
from holdfast.core.model import Failure, FailureKind, Reason
from holdfast.worker.child.attempt import failure_of
from tests.unit.core.prints import print_of


def failing(work: Callable[[], Any]) -> Failure:
    """The failure that a worker reports for it."""
    try:
        work()
    except BaseException as error:  # noqa: BLE001 (a group of exceptions too)
        return failure_of(error)
    raise AssertionError("it did not fail")


def afailing(work: Callable[[], Coroutine[Any, Any, Any]]) -> Failure:
    return failing(lambda: asyncio.run(work()))


def boom(value: object) -> None:
    raise ValueError(f"cannot use {value!r} (order {id(value)})")


def bang(value: object) -> None:
    raise ValueError(f"cannot use {value!r} (order {id(value)})")


def outer(value: object) -> None:
    boom(value)


def test_the_same_place_and_error_is_one_whatever_the_values() -> None:
    prints = {print_of(failing(partial(boom, each))) for each in ("a", 5, {"x": [1]})}
    assert len(prints) == 1
    assert all(len(each) == 12 for each in prints)


def test_another_place_or_error_is_another() -> None:
    def key() -> None:
        raise KeyError("a")

    failures = [failing(work) for work in (lambda: boom(1), lambda: bang(1), key)]
    failures.append(failing(lambda: outer(1)))
    assert len({print_of(each) for each in failures}) == 4


def test_line_numbers_folders_and_machines_do_not_count() -> None:
    trace = """Traceback (most recent call last):
  File "{folder}/shop/{file}", line {line}, in charge
    pay(order)
    ^^^^^^^^^^
  File "{lib}/requests/api.py", line 9, in post
    x()
ValueError: bad
"""
    places = [
        ("/srv/releases/2026-11-15", 7, "/srv/venv/lib/python3.11/site-packages"),
        ("/home/ann/work", 12, "/usr/lib/python3/dist-packages"),
        ("C:\\work", 99, "C:\\Python313\\Lib\\site-packages"),
        ("/app", 1, "/opt/conda/lib64/python3.13"),
    ]
    told = [
        trace.format(folder=folder, line=line, lib=lib, file="money.py")
        for folder, line, lib in places
    ]
    assert [frames(each, "ValueError") for each in told] == [["money.py:charge"]] * 4
    other = trace.format(folder="/app", line=1, lib="/x", file="stock.py")
    assert frames(other, "ValueError") != frames(told[0], "ValueError")
    package = trace.format(folder="/app", line=1, lib="/lib/python3/", file="__init__.py")
    assert frames(package, "ValueError") == ["shop/__init__.py:charge"]


def test_library_frames_in_the_middle_and_at_the_end_are_left_out() -> None:
    def read() -> None:
        json.loads("[1,", object_hook=boom)

    def hook() -> None:
        json.loads("{}", object_hook=boom)

    [inner] = frames(failing(read).trace, "JSONDecodeError")[:1]
    assert inner == "test_fingerprint.py:read"
    assert frames(failing(hook).trace, "ValueError")[:2] == [
        "test_fingerprint.py:boom", "test_fingerprint.py:hook",
    ]  # fmt: skip


def test_our_own_frames_are_not_the_users() -> None:
    def wrong() -> None:
        Holdfast("nonsense://x")

    async def refused() -> None:
        async with Holdfast("memory:") as app:
            await app.enqueue("t", queue="nowhere")

    assert "holdfast/app/application.py" in failing(wrong).trace
    inner = frames(failing(wrong).trace, "ConfigError")
    assert inner[0] == "test_fingerprint.py:wrong"
    failure = afailing(refused)
    assert all("test_fingerprint.py" in each for each in frames(failure.trace, failure.type))


def test_a_trace_without_the_users_code_is_told_by_the_librarys() -> None:
    trace = (
        'Traceback (most recent call last):\n  File "/x/site-packages/lib.py", line 3, in go\nE\n'
    )
    assert frames(trace, "E") == ["lib.py:go"]


def test_only_the_innermost_frames_count_and_none_twice() -> None:
    def a(depth: int) -> None:
        b(depth)

    def b(depth: int) -> None:
        c(depth)

    def c(depth: int) -> None:
        if depth:
            a(depth - 1)
        boom(depth)

    told = [frames(failing(partial(a, depth)).trace, "ValueError") for depth in (0, 1, 9)]
    assert told[0] == told[1] == told[2]
    assert len(told[0]) == FRAMES_MAX


def test_a_recursion_is_one_wherever_it_reached_the_bound() -> None:
    def down(depth: int) -> None:
        up(depth + 1)

    def up(depth: int) -> None:
        down(depth + 1)

    def start(extra: int) -> None:
        if extra:
            start(extra - 1)
        else:
            down(0)

    failures = [failing(partial(start, extra)) for extra in range(4)]
    assert {each.type for each in failures} == {"RecursionError"}
    assert len({print_of(each) for each in failures}) == 1


def wrapped(cause: Callable[[], None]) -> None:
    try:
        cause()
    except Exception as error:
        raise RuntimeError("the task failed") from error


def retried(times: int) -> None:
    try:
        boom(times)
    except ValueError:
        if times:
            retried(times - 1)
        raise


def test_what_it_came_from_counts() -> None:
    first = failing(lambda: wrapped(lambda: boom(1)))
    assert "direct cause" in first.trace
    assert first.type == "RuntimeError"
    same = failing(lambda: wrapped(lambda: boom("x")))
    other = failing(lambda: wrapped(lambda: bang(1)))
    assert print_of(first) == print_of(same) != print_of(other)
    assert frames(first.trace, "RuntimeError")[0] == "test_fingerprint.py:wrapped"


def test_how_often_it_was_tried_does_not_count() -> None:
    prints = {print_of(failing(partial(retried, times))) for times in (1, 2, 5)}
    assert len(prints) == 1


async def together(*works: Callable[[], None]) -> None:
    async def each(work: Callable[[], None]) -> None:
        await asyncio.sleep(0)
        work()

    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(each(work))


def test_a_group_is_told_by_its_parts_in_any_number_and_order() -> None:
    one = afailing(lambda: together(lambda: boom(1)))
    three = afailing(lambda: together(*[lambda: boom(1)] * 3))
    other = afailing(lambda: together(lambda: bang(1)))
    assert "sub-exception" in one.message
    assert print_of(one) == print_of(three) != print_of(other)
    mixed = [afailing(lambda: together(lambda: boom(1), lambda: bang(1))) for _ in range(2)]
    turned = afailing(lambda: together(lambda: bang(1), lambda: boom(1)))
    assert print_of(mixed[0]) == print_of(mixed[1]) == print_of(turned)


def test_async_frames_are_the_users() -> None:
    async def step() -> None:
        await asyncio.sleep(0)
        boom(1)

    async def work() -> None:
        await asyncio.wait_for(step(), 10)

    failure = afailing(work)
    assert frames(failure.trace, failure.type)[:2] == [
        "test_fingerprint.py:boom", "test_fingerprint.py:step",
    ]  # fmt: skip


def test_a_list_that_is_made_in_place_is_no_frame() -> None:
    def work() -> None:
        [boom(each) for each in "a"]  # type: ignore[func-returns-value]

    assert frames(failing(work).trace, "ValueError")[1] == "test_fingerprint.py:work"


def test_names_of_code_are_kept_where_an_error_is_about_code() -> None:
    def attribute(name: str) -> Callable[[], Any]:
        return lambda: getattr(None, name)

    def keyed(key: str) -> Callable[[], Any]:
        return lambda: dict[str, str]()[key]

    assert print_of(failing(attribute("a"))) != print_of(failing(attribute("b")))
    assert print_of(failing(keyed("a"))) == print_of(failing(keyed("b")))


def crash_in_a_process(tmp_path: Path, name: str, noise: str) -> str:
    """The last output of a process that crashed."""
    script = tmp_path / "jobs.py"
    script.write_text(
        "import ctypes, faulthandler, sys\n"
        f"faulthandler.enable(all_threads=False)\n"
        f"def {name}():\n    ctypes.string_at(0)\n"
        f"print({noise!r}, file=sys.stderr)\n{name}()\n"
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, check=False)
    assert ran.returncode < 0
    return ran.stderr.decode()


def test_a_crash_is_told_by_the_frames_it_died_in(tmp_path: Path) -> None:
    noise = 'Traceback (most recent call last):\n  File "other.py", line 1, in other\nValueError: x'

    def crash(trace: str, task: str = "t") -> str:
        text = "its process was killed by SIGSEGV"
        kind = FailureKind.CRASH
        failure = Failure(kind=kind, type="SIGSEGV", message=text, trace=trace, signal=11)
        return fingerprint(Reason.CRASHED, failure, task)

    died = crash_in_a_process(tmp_path, "resize", "hello")
    assert frames(died, crashed=True)[0] == "jobs.py:resize"
    noisy = crash_in_a_process(tmp_path, "resize", noise)
    assert crash(died) == crash(noisy) == crash(died, "another task")
    assert crash(died) != crash(crash_in_a_process(tmp_path, "rotate", "hello"))
    assert crash("") == crash("all sorts of things"), "earlier output does not count"
    assert crash("", "a") != crash("", "b")


def test_a_bar_in_a_line_of_code_is_no_margin() -> None:
    trace = (
        "Traceback (most recent call last):\n"
        '  File "/app/jobs.py", line 1, in one\n'
        '    mask | File "/app/other.py", line 2, in other\n'
        "ValueError: x\n"
    )
    assert frames(trace) == ["jobs.py:one"]
