"""Fingerprints of texts, commands and failures without an exception."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core.fingerprint import TEXT_MAX, fingerprint, normal
from holdfast.core.model import Failure, FailureKind, Reason
from holdfast.worker.child.context import BoundedOutput
from holdfast.worker.commands.command import ending, timed_out
from holdfast.worker.wire import Raised
from tests.unit.core.prints import print_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("job 17 failed", "job 4 failed"),
        ("took 1.5 s", "took 12 s"),
        ("at -3", "at 12"),
        ("user 'ann' is unknown", "user 'it''s bob' is unknown"),
        ("can't reach 'db1'", "can't reach 'db2'"),
        ('isn\'t "x"', 'isn\'t "y z"'),
        ("got b'abc'", "got b'\\x00'"),
        ("no `a`, nor “b”", "no `c`, nor “d e”"),
        ("open /srv/a/b.txt", "open /srv/c.txt"),
        ("open C:\\a\\b.txt", "open C:\\c\\d"),
        ("<Thing at 0x7f00aa>", "<Thing at 0x7f11bb>"),
        ("id 0190b5f2-7c3e-7d1a-8b2f-0123456789ab", "id 0190b5f2-7c3e-7d1a-8b2f-ba9876543210"),
        ("object 5f3a9c1e77", "object 0badc0ffee1"),
        ("key 01J9Z3K4M5N6P7Q8R9S0T1V2W3", "key 01J9Z3K4M5N6P7Q8R9S0T1V2AA"),
        ("GET https://a.example/x?id=5 failed", "GET http://b.example:80/ failed"),
        ("mail to ann@a.example", "mail to bob.b+c@b.example"),
        ("from 10.0.0.1:5432", "from 192.168.7.12:80"),
        ("from fe80::1", "from 2001:db8:0:1::5"),
        ("at 2026-11-15T21:13:08.123Z", "at 2027-01-02T03:04:05.6Z"),
        ("body {'a': 1}", "body {'b': [2], 'c': 'x'}"),
        ("body {'a': 1}", 'body {"b": {"c": [{}, {"d": "}"}]}, "e": 2}'),
        ("bad 'it\\'s \"x\"' here", "bad 'bob' here"),
        ('bad "say \\"x\\"" here', 'bad "bob" here'),
        ("no 'C:\\' here", "no 'D:' here"),
        ("Command '['ls', '-l']' returned 2", "Command '['cat']' returned 2"),
        ("a\n  b", "a b"),
        ("got 5", "got 'five'"),
        ("bad rows: 1", "bad rows: 4, 7, 19"),
        ("errors in a group (1 sub-exception)", "errors in a group (3 sub-exceptions)"),
    ],
)
def test_what_differs_from_job_to_job_is_left_out(one: str, other: str) -> None:
    assert normal(one) == normal(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("HTTP Error 404: Not Found", "HTTP Error 503: Not Found"),
        ("status code 401", "status code 429"),
        ("[Errno 2] x", "[Errno 13] x"),
        ("connection refused", "connection reset"),
        ("exit code 1: no space", "exit code 1: no route"),
    ],
)
def test_what_says_what_it_was_stays(one: str, other: str) -> None:
    assert normal(one) != normal(other)


def failed(status: int, printed: bytes) -> Failure:
    output = BoundedOutput(1000)
    output.write(printed)
    ended = ending(status, output, 5)
    assert isinstance(ended, Raised)
    return ended.failure


def test_commands_are_told_by_exit_code_and_last_line() -> None:
    first = print_of(failed(3, b"12:01 starting\ncannot open /tmp/a/1.csv\n"))
    assert first == print_of(failed(3, b"12:02 starting\ncannot open /tmp/b/2.csv\n"))
    assert first != print_of(failed(4, b"cannot open /tmp/a/1.csv\n"))
    assert first != print_of(failed(3, b"cannot write /tmp/a/1.csv\n"))
    assert print_of(failed(-9, b"")) != print_of(failed(-11, b""))
    assert print_of(failed(1, b""), "a") != print_of(failed(1, b""), "b")


def test_a_timeout_is_its_tasks_own_however_it_was_ended() -> None:
    told = timed_out(1_500)
    assert isinstance(told, Raised)
    killed = Failure(
        kind=FailureKind.TIMEOUT,
        type="AttemptTimeout",
        message="still running after its timeout of 2 s, and killed",
    )
    assert print_of(told.failure, "a") == print_of(killed, "a") != print_of(killed, "b")


@pytest.mark.parametrize("kind", [FailureKind.OVERDUE, FailureKind.EXPIRED])
def test_the_worker_that_was_lost_does_not_count(kind: FailureKind) -> None:
    one, other = (Failure(kind=kind, message=f"worker {name} did it") for name in ("a", "b"))
    assert print_of(one) == print_of(other)
    assert print_of(one) != print_of(one, "another")


def test_without_a_failure_the_reason_and_the_task_count() -> None:
    prints = {
        fingerprint(reason, None, task)
        for reason in (Reason.EXPLICIT, Reason.EXPIRED)
        for task in "ab"
    }
    assert len(prints) == 4


@given(st.text(max_size=3_000), st.text(max_size=300))
@example('File "a", line 1, in b\n' * 9_000, "")
@example("'" * 5_000, "'" * 20_000)
@example("/a" * 5_000, "a" * 20_000)
@example("", ":" * 20_000)
@example("", "{" * 20_000)
@example("", "a@" * 10_000)
@example("", "0" * 20_000 + "g")
@example("", "http" * 5_000)
@example("Traceback (most recent call last):\n" * 5_000, "\ud800\0")
@example(" " * 1_000_000, " " * 1_000_000)
@example(f'  File "{" " * 1_000_000}', "'[" * 500_000)
@example("", "'\\" * 500_000)
@example("", '{"' * 500_000 + "}" * 500_000)
@example("| " * 500_000, "a1_" * 300_000)
@example("\n" * 1_000_000, "a://" * 250_000)
def test_whatever_is_said_a_short_print_comes_of_it(trace: str, text: str) -> None:
    failure = Failure(type="E", message=text, trace=trace)
    assert print_of(failure) == print_of(failure)
    assert len(print_of(failure)) == 12
    assert len(normal(text)) <= TEXT_MAX
