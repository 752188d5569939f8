"""The command line, run as people run it."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import __version__
from holdfast.cli import pages, root, run
from holdfast.cli.output import PrintableFormatter, printable
from holdfast.cli.pages import page

Cli = Callable[..., "Ran"]


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> object:
        assert (self.code, self.err) == (0, ""), self
        return json.loads(self.out)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: str) -> Ran:
        code = run(list(arguments))
        out, err = capfd.readouterr()
        return Ran(code, out, err)

    return call


def test_the_kept_pages_are_what_the_parser_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    printed = root.helps()
    assert len(printed) == 10
    names = {"-".join(["holdfast", *command]): text for command, text in printed.items()}
    kept = {path.stem: path.read_text() for path in pages.FOLDER.glob("*.txt")}
    assert kept == names, "python -c 'from holdfast.cli import pages; pages.write()'"


def test_help_loads_no_parser() -> None:
    code = (
        "import sys; from holdfast.cli import run; run(['--help']); run(['queue', 'create', '-h']);"
        "run(['--version']);"
        "loaded = {'cyclopts', 'rich', 'msgspec', 'asyncio', 'apsw'} & set(sys.modules);"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"{page([])}{page(['queue', 'create'])}holdfast {__version__}\n"


@pytest.mark.parametrize(
    "command", [["queue"], ["queue", "create"], ["job", "show"], ["enqueue"], ["up"], ["backup"]]
)
def test_every_command_has_help(cli: Cli, command: list[str]) -> None:
    ran = cli(*command, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert f"holdfast {' '.join(command)}" in ran.out


def test_the_path_of_a_job(cli: Cli, tmp_path: Path) -> None:
    assert cli("queue", "create", "mail", "--lease", "1m", "--max-attempts", "2").out == (
        "created queue mail\n"
    )
    sent = cli("enqueue", "--task", "send", "--queue", "mail", "--payload", '{"to": "ä"}', "--json")
    assert isinstance(sent.json, dict)
    id_ = sent.json["id"]
    assert sent.json["status"] == "new"
    assert cli("enqueue", "--task", "send", "--id", id_).out == f"{id_} (it was there already)\n"
    shown = cli("job", "show", id_, "--json").json
    assert isinstance(shown, dict)
    wanted = """id queue task state attempts max_attempts priority created_at due_at finished_at
        worker result error reason exit_code output duration_ms failures"""
    assert set(wanted.split()) <= set(shown)
    assert (shown["state"], shown["payload"], shown["max_attempts"]) == (
        "waiting",
        {"to": "ä"},
        2,
    )
    text = cli("job", "show", id_).out
    assert "enqueued" in text
    assert '{"to": "ä"}' in text
    status = cli("status", "--json").json
    assert isinstance(status, dict)
    queues = {queue["name"]: queue for queue in status["queues"]}
    assert (queues["mail"]["ready"], queues["default"]["ready"]) == (1, 0)
    fields = "name ready delayed blocked leased overdue done dead oldest_age_ms"
    assert set(fields.split()) <= set(queues["mail"])
    assert "mail" in cli("status").out
    assert "1m" in cli("queue", "list").out
    listed = cli("queue", "list", "--json").json
    assert isinstance(listed, list)
    assert [queue["name"] for queue in listed] == ["default", "mail"]
    assert cli("backup", "copy.db").code == 0
    copied = cli("--url", f"sqlite:///{tmp_path}/copy.db", "job", "show", id_, "--json").json
    assert copied == shown


def test_options_for_every_command_stand_before_or_after_its_name(cli: Cli) -> None:
    for line in (
        ["--url", "sqlite:///other.db", "--json", "queue", "list"],
        ["--json", "--url=sqlite:///other.db", "queue", "list"],
        ["queue", "list", "--json", "--url", "sqlite:///other.db"],
    ):
        assert isinstance(cli(*line).json, list)
    assert Path("other.db").exists()
    assert not Path("holdfast.db").exists()
    assert root.common_last(["--json", "run", "--", "a", "--json"]) == [
        *("run", "--json", "--", "a", "--json")
    ]


def test_the_url_comes_from_the_environment(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///env.db")
    assert cli("status").code == 0
    assert Path("env.db").exists()
    monkeypatch.setenv("HOLDFAST_URL", "")
    assert cli("status").code == 0
    assert Path("holdfast.db").exists(), "empty is the same as not there"


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (["nonsense"], 2, "nonsense"),
        (["enqueue"], 2, "--task"),
        (["enqueue", "--task", "t", "--colour", "red"], 2, "--colour"),
        (["enqueue", "--task", "t", "--payload", "{"], 2, "payload is not JSON"),
        (["enqueue", "--task", "t", "--payload", "NaN"], 2, "JSON"),
        (["enqueue", "--task", "t", "--payload", "[" * 100_000], 2, "payload is not JSON"),
        (["enqueue", "--task", "t", "--queue", "nowhere"], 2, "queue nowhere does not exist"),
        (["enqueue", "--task", "t", "--delay", "soon"], 2, "delay 'soon'"),
        (["enqueue", "--task", "t", "--priority", "high"], 2, "priority"),
        (["job", "show", "nothing"], 2, "no job has the id 'nothing'"),
        (["queue", "create", "a/b"], 2, "queue name 'a/b'"),
        (["queue", "create", "default"], 2, "exists already"),
        (["status", "--url", "mysql://u:hunter2@h/d"], 2, "no engine for the URL scheme 'mysql'"),
        (["status", "--url", "postgresql://u:hunter2@127.0.0.1:1/d"], 1, ""),
        (["backup", "x.db", "--url", "memory:"], 2, "memory engine does not offer backup"),
        (["--url"], 2, ""),
        (["nonsense", "--help"], 2, "nonsense"),
        (["../pages", "--help"], 2, "pages"),
    ],
)
def test_an_error_is_one_line_and_a_code(cli: Cli, line: list[str], code: int, says: str) -> None:
    ran = cli(*line)
    assert (ran.code, ran.out) == (code, ""), ran
    assert ran.err.startswith("holdfast: ")
    assert ran.err.count("\n") == 1
    assert says in ran.err
    assert "hunter2" not in ran.err


HOSTILE = "\x1b[31m\x07\r\x9b2J\u202e\u2028\x00[bold]red[/bold]"


def test_no_control_byte_reaches_the_terminal(cli: Cli) -> None:
    payload = json.dumps({HOSTILE: [HOSTILE]})
    cli("enqueue", "--task", "t", "--id", "evil", "--payload", payload, "--tenant", HOSTILE[:4])
    assert cli("enqueue", "--task", "t", "--id", "e", "--payload", payload).code == 0
    for line in (["job", "show", "e"], ["job", "show", "e", "--json"], ["job", "show", HOSTILE]):
        ran = cli(*line)
        for char in (ran.out + ran.err).replace("\n", ""):
            assert char.isprintable(), (line, char)
    shown = cli("job", "show", "e", "--json").json
    assert isinstance(shown, dict)
    assert shown["payload"] == {HOSTILE: [HOSTILE]}


def test_what_is_not_seen_is_written_out() -> None:
    assert printable("a\x1b[0m\nb\tc\r\ud800é漢") == "a\\x1b[0m\nb\tc\\r\\ud800é漢"
    assert printable("a\nb", one_line=True) == "a\\nb"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_runs_until_it_is_told_to_stop(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "up"]
    environment = {**os.environ, "HOLDFAST_URL": "sqlite:///up.db"}
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = [process.stdout.readline() for _ in range(5)]
        process.send_signal(number)
        rest = process.stdout.read()
        errors = process.stderr.read()
    assert (process.returncode, rest, errors) == (0, "stopped\n", "")
    assert said[0] == f"holdfast {__version__} on sqlite:///up.db\n"
    assert "holdfast enqueue --task hello" in "".join(said)


def test_log_lines_are_printable_too() -> None:
    record = logging.LogRecord("holdfast", logging.WARNING, "", 0, "odd %s", (HOSTILE,), None)
    assert all(char.isprintable() for char in PrintableFormatter("%(message)s").format(record))


@pytest.mark.parametrize("line", [["queue", "list"], ["status", "--json"], ["--help"]])
def test_a_reader_that_leaves_early_is_no_trouble(line: list[str], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    assert _written(line, writer, tmp_path) == (1, "")


def test_an_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    code, errors = _written(["--help"], full, tmp_path)
    assert (code, errors.count("\n")) == (1, 1)
    assert "No space left" in errors


def _written(line: list[str], output: int, folder: Path) -> tuple[int, str]:
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", *line]
    ran = subprocess.run(
        command, stdout=output, stderr=subprocess.PIPE, text=True, cwd=folder, check=False
    )
    os.close(output)
    return ran.returncode, ran.stderr
