"""Plays a page as its reader would: writes its files, runs its commands, compares the output.

- A `py` block is a file; its first line is a comment with the name. `# shop.py: add` appends to
  the file, `# shop.py: replace report` replaces that function.
- A `console` block has commands after `$ ` and what they print. A worker or a server keeps running
  until the next one is started, or until a block that begins with `^C`.
- A `text` block is what the running worker or server prints next.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests import template
from tests.docs.curl import curl
from tests.wait import wait_until

ADDRESS = "http://127.0.0.1:7433"
"""The address of the server on the page; a test may get another port."""

_BLOCK = re.compile(r"^```(py|console|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LONG_RUNNING = re.compile(r"holdfast (worker run|up|serve)\b")
_READS = re.compile(
    r"(cat|ls) |holdfast (list|status|doctor|job (show|explain|timeline|logs)|dlq (list|show)"
    r"|schedule list|queue limits|worker list)\b|curl http"
)


class Player:
    """One reader in one folder, with the programs of one environment and nothing of this one."""

    def __init__(self, folder: Path, programs: Path, replaced: dict[str, str]) -> None:
        self._folder = folder
        self._replaced = replaced
        ours = re.compile(r"HOLDFAST|^PYTHON|^VIRTUAL_ENV$")
        self._environment = {
            **{key: value for key, value in os.environ.items() if not ours.search(key)},
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "200",
            "PYTHONUNBUFFERED": "1",
        }
        self._template = template.Prepared(programs / "python", self._environment)
        self._running: subprocess.Popen[bytes] | None = None
        self._interrupted = False
        self._log = folder.with_name("running.txt")
        self._seen = 0

    def play(self, page: str) -> None:
        """Play every block of a page, in order."""
        try:
            for block in _BLOCK.finditer(page):
                match block[1]:
                    case "py":
                        write(self._folder, block[2])
                    case "console" if block[2].startswith("^C\n"):
                        self._interrupt()
                        self._await_lines(block[2].removeprefix("^C\n"))
                        self._stop()
                    case "console":
                        for command, expected in commands(block[2]):
                            self._run(self._as_tested(command), self._as_tested(expected))
                    case _:
                        self._await_lines(block[2])
        finally:
            self._template.close()
            self._stop()

    def _as_tested(self, text: str) -> str:
        for shown, used in self._replaced.items():
            text = text.replace(shown, used)
        return text

    def _run(self, command: str, expected: str) -> None:
        if command.startswith("export "):
            name, _, value = shlex.split(command)[1].partition("=")
            self._environment[name] = value
        elif _LONG_RUNNING.match(command):
            self._start(command)
            self._await_lines(expected)
        elif _READS.match(command):
            # Its output may come true a moment later: a reader would run it again.
            try:
                wait_until(lambda: shape(expected).search(self._printed(command)))
            except AssertionError as error:
                raise AssertionError(f"{command} printed:\n{self._printed(command)}") from error
        else:
            printed = self._printed(command, code=0)
            assert shape(expected).search(printed), f"{command} printed:\n{printed}"

    def _printed(self, command: str, code: int | None = None) -> str:
        if command.startswith("curl "):
            return curl(shlex.split(command)[1:], self._address(), None)
        words = _program(command)
        if words is not None:
            run = self._template.run(words, self._folder, self._environment)
        else:
            run = subprocess.run(
                ["sh", "-c", command],
                cwd=self._folder,
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        printed = run.stdout + run.stderr
        assert code in (None, run.returncode), f"{command} ended with {run.returncode}:\n{printed}"
        return printed

    def _start(self, command: str) -> None:
        self._stop()
        self._seen = 0
        self._interrupted = False
        with self._log.open("wb") as log:
            self._running = subprocess.Popen(
                shlex.split(command),
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _interrupt(self) -> None:
        """Send what Ctrl-C in the other terminal sends."""
        assert self._running is not None, "no worker or server is running"
        self._interrupted = True
        self._running.send_signal(signal.SIGINT)

    def _stop(self) -> None:
        if self._running is not None:
            if not self._interrupted:
                self._interrupt()
            assert self._running.wait(60) == 0, self._log.read_text()
            self._running = None

    def _await_lines(self, expected: str) -> None:
        """Wait until the running program has printed these lines after those seen before."""
        pattern = shape(expected)

        def found() -> bool:
            assert self._running is not None, "no worker or server is running"
            assert self._interrupted or self._running.poll() is None, self._log.read_text()
            match = pattern.search(self._log.read_text(), self._seen)
            self._seen = match.end() if match else self._seen
            return match is not None

        try:
            wait_until(found)
        except AssertionError as error:
            raise AssertionError(f"{expected}was not printed:\n{self._log.read_text()}") from error

    def _address(self) -> str:
        address = re.search(r"http://127\.0\.0\.1:\d+", self._log.read_text())
        assert address, "no server is running"
        return address[0]


def _program(command: str) -> list[str] | None:
    """The words of a command for the template; None if a shell or another program must run it."""
    words = shlex.split(command)
    if words[0] == "python":
        return words[1:]
    return words if words[0] == template.HOLDFAST else None


def commands(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a block, each with the lines that it prints."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        yield re.sub(r"\s+# .*", "", command), expected


def shape(expected: str) -> re.Pattern[str]:
    """A pattern for the output: `…` is any text on a line, and a line of `…` alone any lines."""
    lines = []
    for line in expected.replace(ADDRESS, "http://127.0.0.1:…").splitlines():
        if line.strip() == "…":
            lines.append(r"(?:[^\n]*\n)*?")
        elif line.strip():
            words = r"\s+".join(re.escape(word) for word in line.split())
            lines.append(r"[^\S\n]*" + words.replace("…", r"[^\n]*") + r"[^\S\n]*(?:\n|\Z)\s*")
    return re.compile("".join(lines), re.MULTILINE)


def write(folder: Path, block: str) -> None:
    """Write, extend or change a file, as the first line of the block says."""
    head, _, source = block.partition("\n")
    named = re.fullmatch(r"# (\S+\.\w+)(?:: (add|replace) ?(\w+)?)?", head)
    assert named, f"the first line of a block must name its file: {head}"
    path = folder / named[1]
    match named[2]:
        case None:
            path.write_text(block)
        case "add":
            path.write_text(f"{path.read_text().rstrip()}\n\n\n{source.strip()}\n")
        case _:
            path.write_text(with_function(path.read_text(), named[3], source.strip()))


def with_function(source: str, name: str, replacement: str) -> str:
    """The source with another text in place of a top-level function and its decorators."""
    [function] = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    ]
    first = min(node.lineno for node in (function, *function.decorator_list)) - 1
    lines = source.splitlines()
    lines[first : function.end_lineno] = replacement.splitlines()
    return "\n".join(lines) + "\n"
