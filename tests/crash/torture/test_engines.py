"""Kills clients of the real engines, at a small size. Any size: ./hf torture engines --help

It runs in a separate process, because it forks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import SystemRandom

import pytest

from tests.crash.torture.broken_engine import DEFECTS
from tests.sources import ROOT
from tests.wait import wait_until
from torture.__main__ import main

TIMEOUT_S = 30


@pytest.mark.torture
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("engine", "server_kills", "seconds"),
    [("sqlite", 0, 2.0), ("postgres", 1, 3.5)],
    ids=["sqlite", "postgres"],
)
def test_nothing_is_lost_resurrected_or_settled_stale(
    engine: str, server_kills: int, seconds: float, tmp_path: Path
) -> None:
    given = os.environ.get("HOLDFAST_SEED")
    seed = SystemRandom().randrange(1_000_000) if given is None else int(given)
    figures = tmp_path / "figures.json"
    kills = 4
    options = ["--processes", "3", "--kills", str(kills), "--freezes", "1"]
    options += ["--seconds", str(seconds), "--server-kills", str(server_kills)]
    result = run(
        "torture", "engines", "--engine", engine, *options, "--seed", str(seed),
        "--json", str(figures),
    )  # fmt: skip
    print(result.stdout)
    # The findings are at the end of the output.
    assert result.returncode == 0, result.stderr + result.stdout
    [found] = json.loads(figures.read_text())
    assert (found["lost"], found["resurrected"], found["stale_settles"]) == (0, 0, 0)
    assert found["violations"] == 0
    assert found["kills"] >= kills
    assert found["server_kills"] == server_kills
    assert found["operations"] > found["kills"]
    shown = ("limited", "grouped", "children", "transactions", "recounts")
    assert min(found[each] for each in shown) > 0


@pytest.mark.torture
@pytest.mark.parametrize("kind", DEFECTS)
def test_the_checker_finds_a_broken_engine(kind: str, tmp_path: Path) -> None:
    result = run("tests.crash.torture.broken_engine", str(tmp_path), kind)
    assert result.returncode == 0, result.stderr
    _, broken = DEFECTS[kind]
    assert broken <= set(result.stdout.split()), result.stdout


@pytest.mark.torture
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_behind(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torture", "engines", "--engine", "sqlite", "--seconds", "60"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: len(list(tmp_path.glob("*/histories/p*.jsonl"))) >= 8)
        process.send_signal(number)
        process.wait(TIMEOUT_S)
        wait_until(lambda: not is_group_alive(process.pid))
    finally:
        if is_group_alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_history_can_be_checked_afterwards(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(
        '{"process":"p","at_ns":1,"phase":"inv","op":"enqueue","call":1,"jobs":[{"id":"a"}]}\n'
        '{"process":"p","at_ns":2,"phase":"ok","op":"enqueue","call":1,'
        '"jobs":[{"id":"a","answer":"new"}]}\n'
        '{"process":"p","at_ns":3,"phase":"note","op":"dumped"}\n'
    )
    result = run("torture", "check", str(tmp_path))
    assert result.returncode == 1
    assert result.stdout.endswith(
        "I1 (no job is lost) job a: acknowledged by enqueue, but missing from the store\n"
        "violations: I1 ×1\n"
    )


COMMANDS = (
    "engines", "workers", "server", "rabbitmq", "poison", "simulate", "machine", "power", "writers",
    "check", "all",
)  # fmt: skip


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    output = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in output] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: hf torture {name}")


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
