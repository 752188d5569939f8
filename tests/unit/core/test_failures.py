"""Failures as people read them: one line, and the frames in the user's code."""

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import failures
from holdfast.core.model import Failure, FailureKind

TRACE = """\
Traceback (most recent call last):
  File "/home/ada/shop/orders.py", line 7, in bill
    return fetch(order)
           ~~~~~^^^^^^^
  File "/home/ada/.venv/lib/python3.12/site-packages/fetcher/client.py", line 99, in fetch
    return parse(answer)
           ^^^^^^^^^^^^^
  File "/home/ada/shop/parse.py", line 12, in parse
    return answer["customer"]
  File "/usr/lib/python3.12/json/decoder.py", line 1, in decode
    raise KeyError
  [Previous line repeated 3 more times]
KeyError: 'customer'
"""


@pytest.mark.parametrize(
    ("failure", "title"),
    [
        (Failure(type="KeyError", message="'customer'"), "KeyError: 'customer'"),
        (Failure(type="AssertionError"), "AssertionError"),
        (Failure(message="no route"), "no route"),
        (Failure(kind=FailureKind.OVERDUE), "overdue"),
        (Failure(type="ExitCode", message="exit code 7", exit_code=7), "exit code 7"),
        (Failure(type="SIGKILL", signal=9), "SIGKILL"),
        (Failure(type="E", message="x" * 1000), f"E: {'x' * 496}…"),
    ],
)
def test_the_title_has_type_and_message(failure: Failure, title: str) -> None:
    assert failures.title(failure) == title
    assert failures.line(failure) == title


def test_the_line_names_the_innermost_frame_of_the_users_code() -> None:
    failure = Failure(type="KeyError", message="'customer'", trace=TRACE)
    assert failures.line(failure) == "KeyError: 'customer' at parse.py:12 in parse"


def test_the_trace_has_only_frames_of_the_users_code() -> None:
    assert "\n".join(failures.user_trace(TRACE)) == (
        "Traceback (most recent call last):\n"
        '  File "/home/ada/shop/orders.py", line 7, in bill\n'
        "    return fetch(order)\n"
        "           ~~~~~^^^^^^^\n"
        '  File "/home/ada/shop/parse.py", line 12, in parse\n'
        '    return answer["customer"]\n'
        "KeyError: 'customer'\n"
    )


def test_a_trace_of_libraries_only_is_whole() -> None:
    trace = 'Traceback:\n  File "/usr/lib/python3.12/x.py", line 1, in f\nE: x'
    assert failures.user_trace(trace) == trace.split("\n")
    assert failures.user_trace("the last words\nof a process") == [
        "the last words",
        "of a process",
    ]
    assert failures.user_trace("") == failures.user_trace("\n") == []


def test_a_long_trace_keeps_its_end() -> None:
    trace = "".join(f'  File "/a/m.py", line {n}, in f\n' for n in range(500)) + "E: x"
    lines = failures.user_trace(trace)
    assert (len(lines), lines[-1]) == (failures.TRACE_LINES_MAX + 1, "E: x")
    assert lines[0] == "… 461 lines left out …"


def test_the_traces_of_groups_and_causes_are_read() -> None:
    def broken() -> None:
        raise KeyError("inner")

    try:
        try:
            broken()
        except KeyError as error:
            raise ExceptionGroup("several", [error, ValueError("other")]) from error
    except ExceptionGroup as error:
        trace = "".join(traceback.format_exception(error))
    lines = failures.user_trace(trace)
    assert any("in broken" in line for line in lines)
    assert "  | ExceptionGroup: several (2 sub-exceptions)" in lines


@given(st.text(), st.text(), st.text(alphabet='  File "/x.py", line 1\n|+in f', max_size=500))
def test_any_text_is_read(kind: str, text: str, trace: str) -> None:
    failure = Failure(type=kind, message=text, trace=trace)
    assert failures.title(failure)
    assert failures.title(failure) in failures.line(failure)
    failures.user_trace(trace)
