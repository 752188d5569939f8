"""Logs of handlers: the job on every record, text and JSON, and logging that is set up already."""

import asyncio
import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier, Thread

import pytest

from holdfast import AttemptFilter
from holdfast.process import JobFormatter, JsonFormatter, LogFormat
from holdfast.worker.child.logs import set_up_logs
from holdfast.worker.wire import ChildCalls, ToChild
from tests.sources import ROOT
from tests.worker.child_driver import given_job, started
from tests.worker.runner_driver import driven

TARGET = f"{Path(__file__).parents[1]}/sample_app.py:app"
_log = logging.getLogger("tests.logs")


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """The lines of a log handler like that of an application, with the filter of a worker."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(job_id)s/%(attempt)s %(task)s %(message)s"))
    handler.addFilter(AttemptFilter())
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    yield stream
    _log.removeHandler(handler)


@contextmanager
def no_log_handlers() -> Iterator[None]:
    """Logging as in a new process; handlers that are added meanwhile are taken away."""
    root = logging.getLogger()
    named = list(logging.Logger.manager.loggerDict.values())
    loggers = [root, *(each for each in named if isinstance(each, logging.Logger))]
    before = {logger: logger.handlers[:] for logger in loggers}
    level = root.level
    for logger in loggers:
        logger.handlers.clear()
    try:
        yield
    finally:
        for logger, handlers in before.items():
            logger.handlers[:] = handlers
        root.setLevel(level)


def calls_of(task: str, *ids: str) -> list[ToChild]:
    jobs = [given_job(id=id_, attempt=number) for number, id_ in enumerate(ids, 1)]
    return [ChildCalls(1, task, [(job,) for job in jobs])]


async def test_handlers_that_run_concurrently_log_their_own_jobs(written: io.StringIO) -> None:
    met, both = Barrier(2), asyncio.Barrier(2)

    def blocking() -> None:
        _log.info("begins")
        met.wait(60)
        _log.info("ends")

    async def coroutine() -> None:
        _log.info("begins")
        await both.wait()
        _log.info("ends")
        await asyncio.to_thread(_log.info, "in a thread")

    for function in (blocking, coroutine):
        async with driven(2, function) as one:
            one.runner.receive(calls_of(function.__name__, "a", "b"))
            await one.ending(1)
            await one.ending(2)
    lines = written.getvalue().splitlines()
    assert sorted(lines[:4]) == [
        *("a/1 blocking begins", "a/1 blocking ends"),
        *("b/2 blocking begins", "b/2 blocking ends"),
    ]
    assert sorted(lines[4:]) == [
        f"{job} coroutine {text}"
        for job in ("a/1", "b/2")
        for text in ("begins", "ends", "in a thread")
    ]


def test_a_record_outside_of_jobs_has_no_job(written: io.StringIO) -> None:
    _log.info("before")
    thread = Thread(target=_log.info, args=("beside",))
    thread.start()
    thread.join()
    assert written.getvalue() == "/0  before\n/0  beside\n"


def test_a_field_of_the_program_itself_stays(written: io.StringIO) -> None:
    _log.info("own", extra={"task": "mine"})
    assert written.getvalue() == "/0 mine own\n"


def record_of(message: str, **fields: object) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"msg": message, "name": "shop", "levelname": "INFO", "created": 1.5, **fields}
    )


def test_a_line_of_text_names_the_job() -> None:
    shown = JobFormatter("holdfast: %(message)s")
    assert shown.format(record_of("hello")) == "holdfast: hello"
    line = shown.format(record_of("two\nlines", job_id="j1", attempt=2))
    assert line.endswith(" INFO [job j1, attempt 2] shop: two\\nlines")


def test_a_line_of_json_has_every_field() -> None:
    shown = JsonFormatter()
    assert json.loads(shown.format(record_of("hello", job_id="", attempt=0))) == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "info",
        "logger": "shop",
        "message": "hello",
    }
    fields = {"job_id": "j1", "attempt": 2, "task": "t", "queue": "q", "to": Path("/x"), "zero": 0}
    line = json.loads(shown.format(record_of("two\nlines", **fields)))
    assert line["message"] == "two\nlines"
    assert {name: line[name] for name in fields} == {**fields, "to": "/x"}


def test_json_shows_whatever_a_handler_logs() -> None:
    shown = JsonFormatter()
    line = shown.format(record_of("lone \udcff", odd={(1, 2): object()}))
    assert "\n" not in line
    assert json.loads(line)["message"] == "lone ?"
    error = ValueError("no")
    failed = shown.format(record_of("failed", exc_info=(type(error), error, None)))
    assert json.loads(failed)["exception"].endswith("ValueError: no")


@pytest.mark.parametrize("log_format", [None, "json"])
def test_without_logging_of_its_own_a_handler_logs_from_info_on(
    log_format: LogFormat | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with no_log_handlers():
        set_up_logs(log_format, None)
        logging.getLogger("shop").debug("hidden")
        logging.getLogger("shop").info("shown")
    [line] = stream.getvalue().splitlines()
    assert line.endswith(" INFO shop: shown") or json.loads(line)["message"] == "shown"


def test_logging_of_the_application_is_left_alone_but_has_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, theirs = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    own = logging.StreamHandler(theirs)
    own.setFormatter(logging.Formatter("<%(job_id)s> %(message)s"))
    shop = logging.getLogger("shop")
    with no_log_handlers():
        shop.addHandler(own)
        set_up_logs(None, None)
        shop.warning("hello")
        assert (theirs.getvalue(), stream.getvalue()) == ("<> hello\n", "")
        set_up_logs("text", "error")
        shop.warning("hidden")
        shop.error("shown")
        assert stream.getvalue().endswith(" ERROR shop: shown\n")
        shop.removeHandler(own)


def test_log_lines_of_a_handler_are_kept_with_its_job() -> None:
    with started(cwd=ROOT, target=TARGET, log_format="json", log_level="debug") as child:
        output = child.output(child.call("log_line", ["careful"]))
    [line] = output.decode().splitlines()
    wanted = {"level": "debug", "message": "careful", "task": "log_line", "attempt": 1}
    assert wanted.items() <= json.loads(line).items()
