"""Commands through a real child process: arguments, environment, endings, output."""

import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.worker.wire import (
    AskedRelease,
    CallsEnded,
    CancelCall,
    ChildReady,
    Finish,
    GivenBack,
    NoteUpdate,
    Raised,
    Recall,
    Returned,
    TaskInfo,
)
from tests.wait import wait_until
from tests.worker.child_driver import Child, started

HOSTILE = [
    "; echo injected",
    "$(echo injected)",
    "`echo injected`",
    "| cat",
    "&& echo injected",
    "> /tmp/injected",
    "a b\tc\nd",
    "'\"\\",
    "*",
    "~",
    "$HOME",
    "-n",
    "--help",
    "!!",
    "#",
    "{a,b}",
    "\u202e\u0007\x1b[31m",
    "é漢🙂",
    "%s%n",
    "",
]


@pytest.fixture(scope="module")
def shared() -> Iterator[Child]:
    with started() as child:
        yield child


@pytest.fixture
def child(shared: Child) -> Child:
    """One child for many tests; each leaves it idle."""
    assert not shared.board.running()
    return shared


@pytest.fixture
def own() -> Iterator[Child]:
    with started() as child:
        assert child.wait_for(ChildReady).tasks == (TaskInfo("command", gentle=True),)
        yield child


def returned(child: Child, command: list[str], **payload: Any) -> bytes:
    number = child.command(command, **payload)
    ending = child.ending(number)
    assert isinstance(ending, Returned), ending
    assert ending.result is not None
    result = json.loads(ending.result)
    assert result["exit_code"] == 0
    assert result["duration_ms"] >= 0
    return child.output(number)


def raised(child: Child, command: str | list[str], **payload: Any) -> Raised:
    ending = child.run(command, **payload)
    assert isinstance(ending, Raised), ending
    return ending


def test_output_of_both_streams_comes_with_the_ending(child: Child) -> None:
    assert returned(child, ["sh", "-c", "echo one; echo two >&2"]) == b"one\ntwo\n"


@pytest.mark.parametrize("argument", HOSTILE)
def test_an_argument_stays_one_argument(child: Child, argument: str) -> None:
    assert returned(child, ["printf", "%s|", "first", argument]).decode() == f"first|{argument}|"


def test_a_string_is_refused_where_shells_are_off() -> None:
    with started(shell=False) as child:
        ending = raised(child, "echo hello")
    assert ending.fatal
    assert ending.failure.message == (
        "a command in one string needs a shell, which is off for this worker (--no-shell, or the"
        " setting worker-shell): switch it on, or give the command as a list, such as"
        ' ["echo", "hello"]'
    )


def test_a_string_runs_by_the_shell_where_that_is_allowed() -> None:
    with started(shell=True) as child:
        assert child.output(child.command("echo a; echo $((1 + 1))")) == b"a\n2\n"


def test_environment_is_an_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    monkeypatch.setenv("TZ", "UTC")
    with started() as other:
        marks = ("JOB_ID", "ATTEMPT", "LEASE_TOKEN", "QUEUE", "WORKER", "WORKER_ID")
        own = {"OWN": "1", "HOLDFAST_TOKEN": "hf_of_the_job"}
        own |= {f"HOLDFAST_{name}": "999" for name in marks}
        text = returned(other, ["env"], env=own).decode()
    has = dict(line.split("=", 1) for line in text.splitlines())
    assert "SECRET" not in has
    assert not [name for name in has if name.startswith("HOLDFAST_CHILD")]
    assert has["TZ"] == "UTC"
    assert has["OWN"] == "1"
    assert has["HOLDFAST_TOKEN"] == "hf_of_the_job", "a bearer token, which is not a mark"
    assert (has["HOLDFAST_JOB_ID"], has["HOLDFAST_LEASE_TOKEN"]) == ("j1", "7")
    assert (has["HOLDFAST_ATTEMPT"], has["HOLDFAST_QUEUE"]) == ("1", "q")
    assert (has["HOLDFAST_WORKER"], has["HOLDFAST_WORKER_ID"]) == ("w", other.setup.worker_id)


def test_program_is_found_by_the_jobs_own_path(child: Child, tmp_path: Path) -> None:
    program = tmp_path / "greet"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    assert returned(child, ["greet"], env={"PATH": str(tmp_path)}) == b"hello\n"


def test_cwd_of_the_job_and_of_the_worker(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    with started(cwd=tmp_path) as child:
        assert returned(child, ["pwd"]).decode().strip() == str(tmp_path)
    with started() as child:
        assert returned(child, ["pwd"], cwd=str(tmp_path)).decode().strip() == str(tmp_path)
        # The child itself did not stay there.
        assert returned(child, ["pwd"]).decode().strip() == str(Path.cwd())


def test_only_the_three_standard_descriptors_are_open_and_input_is_empty(child: Child) -> None:
    beside = [child.command(["sleep", "60"]) for _ in range(2)]
    listing = returned(child, ["ls", "/proc/self/fd"]).decode().split()
    # The fourth is of the listing itself.
    assert listing == ["0", "1", "2", "3"]
    assert returned(child, ["cat"]) == b""
    for number in beside:
        child.write(CancelCall(number, lost=True))
        child.ending(number)


def test_signals_are_at_their_defaults(child: Child) -> None:
    text = returned(child, ["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"]).decode()
    # The C library keeps 32 and 33 to itself, and lets nobody change them.
    standard = (1 << 31) - 1
    assert [int(line.split()[1], 16) & standard for line in text.splitlines()] == [0, 0]


@pytest.mark.parametrize("code", [1, 3, 126, 255])
def test_exit_code_and_last_line(child: Child, code: int) -> None:
    ending = raised(child, ["sh", "-c", f"echo first; echo 'it is broken' >&2; exit {code}"])
    assert ending.failure.exit_code == code
    assert ending.failure.type == "ExitCode"
    assert ending.failure.message == f"exit code {code}: it is broken"
    assert not ending.fatal


def test_signal_by_its_name(child: Child) -> None:
    ending = raised(child, ["sh", "-c", "kill -9 $$"])
    assert (ending.failure.signal, ending.failure.message) == (9, "killed by SIGKILL")


def test_a_command_that_cannot_be_started_says_why(child: Child, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("echo hello\n")
    lost = tmp_path / "lost"
    lost.write_text("#!/no/such/interpreter\n")
    lost.chmod(0o755)
    shapeless = tmp_path / "shapeless"
    shapeless.write_bytes(b"\x00\x01\x02")
    shapeless.chmod(0o755)
    for command, code, text in (
        (["no-such-program"], 127, "command not found: 'no-such-program'"),
        (["/no/such/program"], 127, "command not found: '/no/such/program'"),
        ([""], 127, "command not found: ''"),
        ([str(lost)], 127, "interpreter in its first line that does not exist"),
        ([str(plain)], 126, "Permission denied"),
        ([str(tmp_path)], 126, "Permission denied"),
        ([str(shapeless)], 126, "not a program"),
    ):
        ending = raised(child, command)
        assert ending.failure.exit_code == code, command
        assert text in ending.failure.message
        assert not ending.fatal


@pytest.mark.parametrize("cwd", ["/no/such/folder", "/etc/passwd"])
def test_a_folder_that_cannot_be_entered(child: Child, cwd: str) -> None:
    ending = raised(child, ["true"], cwd=cwd)
    assert repr(cwd) in ending.failure.message
    assert not ending.fatal
    assert isinstance(child.run(["true"]), Returned)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"command": []}, "empty list"),
        ({"command": ["echo", "a\0b"]}, "null"),
        ({"command": ["true"], "env": {"A=B": "1"}}, "environment"),
        ({"command": ["true"], "env": {"A": "\0"}}, "null"),
        ({"command": ["true"], "cwd": "\0"}, "null"),
        ({"command": 5}, "$.command"),
        ({"command": ["a", 5]}, "$.command[1]"),
        ({"cmd": ["a"]}, "command"),
        ({"command": ["a"], "shell": True}, "shell"),
        (["a"], "object"),
        (None, "object"),
        (b"{", "not a command"),
        (b"\xff\xfe", "not a command"),
        (b"[" * 100_000, "not a command"),
    ],
)
def test_a_wrong_payload_is_fatal_and_named(child: Child, payload: object, text: str) -> None:
    ending = child.ending(child.call("command", payload))
    assert isinstance(ending, Raised), ending
    assert ending.fatal
    assert text in ending.failure.message


def test_too_many_arguments_are_fatal(child: Child) -> None:
    ending = raised(child, ["true", *["x" * 100_000] * 40])
    assert ending.fatal
    assert "too long" in ending.failure.message


def test_a_machine_out_of_processes_releases_the_job(own: Child) -> None:
    own.wait_for(ChildReady)
    old = resource.prlimit(own.process.pid, resource.RLIMIT_NOFILE)
    kinds = []
    # Fewer than it has open already, then ever more, so that each step in turn has none left.
    for most in range(3, 24):
        resource.prlimit(own.process.pid, resource.RLIMIT_NOFILE, (most, old[1]))
        ending = own.run(["true"], cwd="/")
        if isinstance(ending, AskedRelease):
            assert "Too many open files" in ending.text
            assert ending.delay_ms > 0
        kinds.append(type(ending))
    assert kinds[0] is AskedRelease
    assert kinds[-1] is Returned
    assert set(kinds) == {AskedRelease, Returned}


def test_another_task_is_released(child: Child) -> None:
    assert isinstance(child.ending(child.call("mail", {})), AskedRelease)


def test_no_more_run_than_there_are_slots_and_the_rest_can_be_recalled(child: Child) -> None:
    running = [child.command(["sleep", "60"]) for _ in range(4)]
    waiting = [child.command(["sleep", "60"]) for _ in range(3)]
    wait_until(lambda: len(child.board.running()) == 4)
    child.write(Recall())
    assert list(child.wait_for(GivenBack).numbers) == waiting
    assert sorted(child.board.running()) == running
    for number in running:
        child.write(CancelCall(number))
        child.ending(number)


def test_finish_ends_it_when_all_is_done(own: Child) -> None:
    number = own.command(["sh", "-c", "read x; echo end"])
    own.write(Finish())
    assert isinstance(own.ending(number), Returned)
    assert own.process.wait(60) == 0


def test_output_is_reported_while_it_runs(child: Child) -> None:
    number = child.command(["sh", "-c", "echo begun; sleep 60"])
    told = child.wait_for(NoteUpdate, lambda word: word.number == number)
    assert told.output == b"begun\n"
    child.write(CancelCall(number))
    child.ending(number)


def test_endless_output_is_cut_and_does_not_fail() -> None:
    # More than the bound of the memory below.
    count = 300_000_000
    with started(output_max=1_000) as child:
        ending = child.run(["sh", "-c", f"yes | head -c {count}; echo the end"])
        status = Path(f"/proc/{child.process.pid}/status").read_text()
        peak_kb = int(status.split("VmHWM:")[1].split()[0])
    assert isinstance(ending, Returned), ending
    assert ending.output is not None
    assert len(ending.output) <= 1_000
    assert ending.output.startswith(b"y\ny\n")
    assert ending.output.endswith(b"y\nthe end\n")
    assert b"bytes left out" in ending.output
    assert peak_kb < 200_000


def test_invalid_utf8_is_kept(child: Child) -> None:
    output = returned(child, ["printf", "\\377\\000\\033[31m"])
    assert output == b"\xff\x00\x1b[31m"
    ending = raised(child, ["sh", "-c", "printf '\\377bad'; exit 1"])
    assert ending.failure.message == "exit code 1: \ufffdbad"


def test_many_commands_end_each_with_its_own_output(child: Child) -> None:
    numbers = {child.command(["echo", str(index)]): index for index in range(200)}
    for number, index in numbers.items():
        assert child.output(number) == f"{index}\n".encode()
    assert (
        len(
            {n for w in child.answers if isinstance(w, CallsEnded) for n in w.numbers}
            & numbers.keys()
        )
        == 200
    )
