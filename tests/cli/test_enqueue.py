"""`enqueue` of one job: JSON, flags, commands, and waiting for it."""

import asyncio
import json
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.app.application import Holdfast
from holdfast.cli import flags
from holdfast.cli.output import Exit
from holdfast.core.backoff import Backoff
from holdfast.core.model import Failure, Job, Lease, Note, Overrides, Reason, Renewal, State
from holdfast.core.verdict import Bury, Complete, Settlement
from holdfast.core.workers import TaskRecord
from holdfast.notation import job_lines
from holdfast.ops.settings import save_declared
from tests.cli import seed
from tests.cli.program import Cli, command, environment, run_program

HOSTILE = "\x1b[31m\x07\r\x9b2J\u202e\u2028[bold]red[/bold]"


def job_of(id: str) -> Job:
    async def read() -> Job | None:
        async with Holdfast("sqlite:///holdfast.db") as app:
            return await app.get(id)

    job = asyncio.run(read())
    assert job is not None
    return job


def payload_of(id: str) -> Any:
    return json.loads(job_of(id).payload)


def test_a_job_as_json(cli: Cli) -> None:
    assert cli("enqueue", '{"id": "j1", "command": "sleep 2"}').out == "j1\n"
    job = job_of("j1")
    assert (job.task, job.queue, job.overrides) == ("command", "default", Overrides())
    assert payload_of("j1") == {"command": "sleep 2"}
    again = cli("enqueue", '{"id": "j1", "command": "sleep 2"}')
    assert (again.code, again.out) == (0, "j1 (already known)\n")
    assert cli("enqueue", '{"id": "j1", "task": "t"}', "--json").json == {
        "id": "j1",
        "status": "duplicate",
    }


def test_fields_of_a_pasted_job_that_the_queue_sets_are_ignored_with_a_note(
    cli: Cli, tmp_path: Path
) -> None:
    pasted = '{"id": "j1", "command": "true", "state": "dead", "attempts": 3}'
    said = "ignored attempts, state: the queue sets such fields itself\n"
    ran = cli("enqueue", pasted)
    assert (ran.code, ran.out) == (0, "j1\n")
    assert ran.err.endswith(said)
    assert (job_of("j1").state, job_of("j1").attempt) == (State.WAITING, 0)
    lines = tmp_path / "jobs"
    lines.write_text(pasted.replace("j1", "j2"))
    ran = cli("enqueue", "--file", str(lines))
    assert ran.code == 0
    assert said in ran.err


def test_a_command_after_dashes_is_a_list_without_a_shell(cli: Cli) -> None:
    words = ["echo", "a b", "--json", "$HOME", "--", "-x", '{"id": 1}', ""]
    id_ = cli("enqueue", "--cwd", "/tmp", "--env", "A=1=2", "--", *words).out.strip()
    assert payload_of(id_) == {"command": words, "cwd": "/tmp", "env": {"A": "1=2"}}
    id_ = cli("--json", "enqueue", "--id", "x", "--", '{"not": "a job"}').json["id"]
    assert payload_of(id_) == {"command": ['{"not": "a job"}']}
    assert payload_of(cli("enqueue", "--", "-").out.strip()) == {"command": ["-"]}


def test_a_task_and_its_payload(cli: Cli) -> None:
    id_ = cli("enqueue", "--task", "send", "--payload", '{"to": "ä", "n": [1.5, null]}').out.strip()
    assert (job_of(id_).task, payload_of(id_)) == ("send", {"to": "ä", "n": [1.5, None]})
    id_ = cli("enqueue", "--task", "send").out.strip()
    assert payload_of(id_) is None
    id_ = cli("enqueue", "--task", "t", "--payload", "{", "--content-type", "text/x").out.strip()
    assert (job_of(id_).payload, job_of(id_).content_type) == (b"{", "text/x")


ALL: dict[str, Any] = {
    "id": "all",
    "queue": "mail",
    "priority": 7,
    "delay": "10m",
    "expires": "1h",
    "key": "k",
    "key_window": "2h",
    "key_policy": "replace",
    "key_hold": "window",
    "tenant": "acme",
    "group": "g",
    "labels": {"a": "1"},
    "headers": {"h": "x=y"},
    "lease": "45s",
    "timeout": "3s",
    "max_attempts": 9,
    "max_crashes": 2,
    "backoff": "linear(5s, max=1m)",
    "content_type": "application/json",
    "task": "t",
    "payload": {"n": 1},
}


def test_every_field_by_key_and_by_flag(cli: Cli) -> None:
    cli("queue", "create", "mail")
    line: list[str] = []
    for name, value in ALL.items():
        text = json.dumps(value) if name == "payload" else value
        if isinstance(text, dict):
            text = next(f"{key}={each}" for key, each in text.items())
        line += [f"--{name.replace('_', '-')}", str(text)]
    assert cli("enqueue", *line).out == "all\n"
    by_flag = job_of("all")
    assert cli("enqueue", json.dumps({**ALL, "id": "same", "key": "other"})).out == "same\n"
    by_key = job_of("same")
    for job in (by_flag, by_key):
        assert (job.priority, job.tenant, job.group) == (7, "acme", "g")
        assert (job.labels, job.headers) == ({"a": "1"}, {"h": "x=y"})
        assert job.due_at - job.created_at == 600_000
        assert job.expires_at is not None
        assert job.expires_at - job.created_at == 3_600_000
        assert job.overrides == Overrides(
            lease_ms=45_000,
            timeout_ms=3_000,
            max_attempts=9,
            max_crashes=2,
            backoff=Backoff(kind="linear", first_ms=5_000, cap_ms=60_000),
        )
        assert (job.queue, job.task, json.loads(job.payload)) == ("mail", "t", {"n": 1})


def test_flags_and_keys_have_the_same_names() -> None:
    assert set(flags.JobFlags.__dataclass_fields__) == set(job_lines.FIELDS)


def test_max_retries_and_run_at(cli: Cli) -> None:
    id_ = cli("enqueue", '{"command": "x", "max_retries": 2}').out.strip()
    assert job_of(id_).overrides == Overrides(max_attempts=3)
    then = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    for line in (
        ["--task", "t", "--run-at", then.isoformat()],
        [json.dumps({"task": "t", "run_at": then.isoformat()})],
    ):
        job = job_of(cli("enqueue", *line).out.strip())
        assert abs(job.due_at - then.timestamp() * 1000) < 60_000


def test_keys_of_the_job_win_over_flags(cli: Cli) -> None:
    flags = ["--priority", "1", "--max-attempts", "9", "--task", "t", "--delay", "1h"]
    job = job_of(cli("enqueue", '{"priority": 5, "max_retries": 1}', *flags).out.strip())
    assert (job.priority, job.task, job.overrides.max_attempts) == (5, "t", 2)
    job = job_of(cli("enqueue", '{"command": "x"}', *flags, "--payload", "1").out.strip())
    assert job.task == "command"


def test_a_job_is_addressed_to_a_worker(cli: Cli) -> None:
    ran = cli("enqueue", "--to", "one", "--task", "t")
    assert (ran.code, ran.out) == (Exit.NOT_FOUND, "")
    assert 'unknown worker "one' in ran.err

    async def declare() -> None:
        async with Holdfast("sqlite:///holdfast.db") as app:
            await app.declare("worker.one")

    asyncio.run(declare())
    job = job_of(cli("enqueue", "--to", "one", "--task", "t").out.strip())
    assert (job.queue, (job.expires_at or 0) - job.created_at) == ("worker.one", 300_000)
    cli("config", "set", "addressed-ttl", "1m")
    job = job_of(cli("enqueue", '{"to": "one", "task": "t"}').out.strip())
    assert (job.expires_at or 0) - job.created_at == 60_000
    job = job_of(cli("enqueue", "--to", "one", "--task", "t", "--delay", "1h").out.strip())
    assert (job.expires_at or 0) > job.due_at


def test_a_held_key_prints_the_job_that_holds_it(cli: Cli) -> None:
    cli("enqueue", "--task", "t", "--id", "first", "--key", "k")
    assert cli("enqueue", "--task", "t", "--key", "k").out == "first (holds the key)\n"


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ([], 2, 'neither a "command" nor a "task"'),
        (["echo", "hello"], 2, "put -- before a command"),
        (["--"], 2, "the command is empty"),
        (["--task", "t", "--colour", "red"], 2, 'unknown option "--colour"'),
        (["--task", "t", "--payload", "{"], 2, "the payload is not JSON"),
        (["--task", "t", "--payload", "NaN"], 2, "JSON"),
        (["--task", "t", "--payload", "[" * 100_000], 2, "JSON"),
        (["--task", "t", "--queue", "nowhere"], 3, "queue nowhere does not exist"),
        (["--task", "t", "--delay", "soon"], 2, 'delay "soon"'),
        (["--task", "t", "--priority", "high"], 2, "priority"),
        (["--task", "t", "--priority", "101"], 2, "priority 101"),
        (["--task", "t", "--label", "x"], 2, '--labels "x": expected NAME=VALUE'),
        (["--task", "t", "--run-at", "noon"], 2, '--run-at "noon": expected'),
        (["--task", "t", "--max-attempts", "3", "--max-retries", "2"], 2, "not both"),
        (["--task", "t", "--max-retries", "-1"], 2, "max"),
        (["--task", "t", "--backoff", "often"], 2, 'backoff "often"'),
        (["--task", "t", "--command", "x"], 2, "either a command, or a task"),
        (["--task", "t", "--cwd", "/"], 2, "cwd and env apply only to commands"),
        (["--task", "t", "--queue", "a", "--to", "b"], 2, "not both"),
        (["{"], 2, "the job is not JSON"),
        (['{"command": 5}'], 2, "command: expected"),
        (['{"command": ["a", 5]}'], 2, "command[1]"),
        (['{"command": "x", "colour": "red"}'], 2, "unknown field colour: a job has task,"),
        (['{"comand": "x"}'], 2, "unknown field comand: did you mean command?"),
        (["--task", "t", "--prioriti", "5"], 2, "did you mean --priority?"),
        (["--task", "t", "--", "echo"], 2, "give only one of"),
        (["--command", "x", "--", "echo"], 2, "give only one of"),
        (["--to", "nobody", "--", "x"], 3, 'unknown worker "nobody"'),
        (['{"task": "t", "payload": 1e999}'], 2, "payload"),
        (['{"task": "t"}', "--file", "f"], 2, "not both"),
        (["--file", "nothing"], 2, "nothing cannot be read"),
        (["-", "--wait"], 2, "need a single job"),
        (["--wait-timeout", "x", "--task", "t"], 2, '--wait-timeout "x"'),
    ],
)
def test_an_invalid_job_is_refused(cli: Cli, line: list[str], code: int, says: str) -> None:
    seed.begin()
    ran = cli("enqueue", *line)
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1), ran
    assert says in ran.err
    assert cli("status", "--json").json["queues"][0]["ready"] == 0


def test_an_argument_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    ran = run_program(tmp_path, "enqueue", "--", os.fsdecode(b"\xff"))
    assert (ran.code, "not UTF-8" in ran.err) == (2, True)


def test_a_dry_run_adds_nothing(cli: Cli) -> None:
    ran = cli("enqueue", "--dry-run", "--id", "j", "--task", "t")
    assert (ran.code, ran.out) == (0, "j (dry run: not enqueued)\n")
    assert cli("enqueue", "--dry-run", "--task", "t", "--priority", "101").code == 2
    assert cli("job", "show", "j").code == Exit.NOT_FOUND


def test_no_control_character_reaches_the_terminal(cli: Cli) -> None:
    cli("enqueue", "--task", "t", "--id", "e", "--payload", json.dumps({HOSTILE: [HOSTILE]}))
    for line in (
        ["job", "show", "e"],
        ["job", "show", "e", "--json"],
        ["job", "show", HOSTILE],
        ["enqueue", HOSTILE],
        ["enqueue", json.dumps({HOSTILE: 1})],
        ["enqueue", "--task", "t", "--to", HOSTILE],
    ):
        ran = cli(*line)
        for char in (ran.out + ran.err).replace("\n", ""):
            assert char.isprintable(), (line, char)
    assert cli("job", "show", "e", "--json").json["payload"] == {HOSTILE: [HOSTILE]}


async def _waited(folder: Path, work: Any, *flags: str) -> tuple[int, str, str]:
    """Run `enqueue --wait` as a program, and `work` on the lease of its job."""
    async with Holdfast(f"sqlite:///{folder}/holdfast.db") as app:
        process = await asyncio.create_subprocess_exec(
            *command("enqueue", "--wait", *flags, "--", "x"),
            cwd=folder,
            env=environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        [lease] = await app.lease(wait=60, worker="w")
        assert process.stdout is not None
        assert process.stderr is not None
        await work(app, lease, process.stdout)
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()


async def _print(app: Holdfast, lease: Lease, output: bytes) -> None:
    [renewed] = await app.renew_many([Renewal(lease=lease, note=Note(output=output))])
    assert renewed is not None


async def _end(app: Holdfast, lease: Lease, verdict: Complete | Bury, output: bytes) -> None:
    await app.settle([Settlement(lease=lease, verdict=verdict, note=Note(output=output))])


async def test_wait_prints_output_as_it_arrives(tmp_path: Path) -> None:
    async def work(app: Holdfast, lease: Lease, out: asyncio.StreamReader) -> None:
        await _print(app, lease, b"one\n")
        assert await out.readline() == b"one\n", "before the job has ended"
        await _print(app, lease, b"one\ntwo\x1b[31m\n")
        assert await out.readline() == b"two\\x1b[31m\n"
        await _end(app, lease, Complete(b"{}"), b"one\ntwo\x1b[31m\nthree\n")

    assert await _waited(tmp_path, work) == (0, "three\n", "")


async def test_the_exit_code_of_wait_is_the_outcome_of_the_job(tmp_path: Path) -> None:
    async def bury(app: Holdfast, lease: Lease, out: asyncio.StreamReader) -> None:
        failure = Failure(message="exit code 3", exit_code=3)
        await _end(app, lease, Bury(Reason.ATTEMPTS, failure), b"bad\n")

    code, out, err = await _waited(tmp_path, bury)
    assert (code, out) == (Exit.UNDONE, "bad\n")
    assert err.endswith(" is dead (attempts): exit code 3\n")


async def test_wait_with_json_prints_the_job(tmp_path: Path) -> None:
    async def work(app: Holdfast, lease: Lease, out: asyncio.StreamReader) -> None:
        await _end(app, lease, Complete(b'{"exit_code":0}'), b"hello\n")

    code, out, err = await _waited(tmp_path, work, "--json")
    shown = json.loads(out)
    assert (code, err, shown["state"], shown["output"]) == (0, "", "done", "hello\n")
    assert (shown["exit_code"], shown["result"]) == (0, {"exit_code": 0})


async def test_an_interrupted_wait_leaves_the_job_running(tmp_path: Path) -> None:
    async with Holdfast(f"sqlite:///{tmp_path}/holdfast.db") as app:
        process = await asyncio.create_subprocess_exec(
            *command("enqueue", "--wait", "--id", "j", "--", "x"),
            cwd=tmp_path,
            env=environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        [lease] = await app.lease(wait=60, worker="w")
        await _print(app, lease, b"begun\n")
        assert process.stdout is not None
        assert await process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGINT)
        assert await process.communicate() == (b"", b"j continues\n")
        assert process.returncode == Exit.INTERRUPTED
        await app.complete(lease)


def test_wait_times_out_and_the_job_continues(tmp_path: Path) -> None:
    ran = run_program(
        tmp_path, "enqueue", "--wait", "--wait-timeout", "50ms", "--id", "j", "--", "x"
    )
    assert (ran.code, ran.out, ran.err) == (Exit.WAITING, "", "j has not ended yet; it continues\n")
    assert run_program(tmp_path, "job", "show", "j", "--json").json["state"] == "waiting"


def test_a_job_gets_the_options_that_its_task_declares(cli: Cli) -> None:
    slow = TaskRecord(queue="slow", overrides=Overrides(max_attempts=1))
    seed.with_app(lambda app: save_declared(app.engine, {"slow": slow}))
    assert cli("queue", "create", "slow").code == 0
    assert cli("enqueue", "--id", "a", "--task", "slow").code == 0
    assert cli("enqueue", '{"id": "b", "task": "slow", "max_attempts": 5}').code == 0
    shown = [cli("job", "show", id_, "--json").json for id_ in ("a", "b")]
    assert [(each["queue"], each["max_attempts"]) for each in shown] == [("slow", 1), ("slow", 5)]
    assert cli("schedule", "add", "s", "--every", "1h", "--task", "slow").code == 0
    assert cli("schedule", "run", "s").code == 0
    (job,) = [each for each in cli("list", "--json").json if each["id"] not in "ab"]
    assert (job["queue"], job["max_attempts"]) == ("slow", 1)
