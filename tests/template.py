"""A prepared process that has imported Holdfast and forks itself for each short program: a command
then costs what it does, and not the import of the package.

A program has a process, folder, environment, arguments, input and output of its own, and ends as
every Python program does. Workers and servers are not started this way: their tests are about
processes. Nor is a program whose start is tested: the interpreter and most modules are there.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.sources import ROOT

HOLDFAST = "holdfast"
TIMEOUT_S = 60
# The bytes that a pipe holds before they are read.
INPUT_BYTES_MAX = 65_536
# Modules that most programs load anyway. Public modules that a program must import itself, such as
# `holdfast.testing`, are not among them.
_PRELOADED = (
    "holdfast.app.blocking_app",
    "holdfast.cli.enqueue",
    "holdfast.cli.jobs",
    "holdfast.cli.queues",
    "holdfast.cli.root",
    "holdfast.engines.sqlite.engine",
)
_START = "from tests.template import serve; serve()"
# Bytes in JSON: each is one character.
_BYTES = "latin-1"


def close() -> None:
    """End the prepared process of this environment, if there is one."""
    _PREPARED.close()


class Prepared:
    """The prepared process, started by the first request. It runs one program at a time.

    `python` is that of another environment in which Holdfast is installed, and `environment` then
    has the variables of the process.
    """

    def __init__(
        self, python: Path = Path(sys.executable), environment: Mapping[str, str] | None = None
    ) -> None:
        self._python = python
        self._environment = environment
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def run(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        *,
        name: str | None = None,
        given: bytes = b"",
        strict: bool = True,
        timeout_s: int = TIMEOUT_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run `holdfast` or a Python file, named by the first word, with the other words as its
        arguments. A signal ends it when its time is over.

        `name` is the program's name if it is not the first word, and `given` its standard input.
        `strict` is `python -W error`.
        """
        assert len(given) <= INPUT_BYTES_MAX, "nobody reads the input while it is written"
        request = {
            "words": list(words),
            "folder": str(folder),
            "environment": dict(environment),
            "name": words[0] if name is None else name,
            "given": given.decode(_BYTES),
            "strict": strict,
            "timeout_s": timeout_s,
        }
        answer = self._ask(request)
        out, err = (answer[each].encode(_BYTES).decode() for each in ("out", "err"))
        return subprocess.CompletedProcess(words, answer["code"], out, err)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            try:
                return self._exchange(request)
            except BaseException:
                # The answer to this request must not be taken for the answer to the next one.
                self.close()
                raise

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with process:
                process.kill()

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._process = subprocess.Popen(
                [self._python, "-c", _START],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        requests.write(json.dumps(request) + "\n")
        requests.flush()
        line = answers.readline()
        assert line, "the prepared process has ended"
        answer: dict[str, Any] = json.loads(line)
        return answer


_PREPARED = Prepared()
run = _PREPARED.run


def serve() -> None:
    """The prepared process: reads a program from each line of its input, and prints how it ended.
    It ends with its input."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in _PRELOADED:
            import_module(name)
    assert threading.active_count() == 1, "a process with threads cannot be forked"
    gc.freeze()
    # A program gets other files as its standard input and output.
    with os.fdopen(os.dup(0)) as requests, os.fdopen(os.dup(1), "w") as answers:
        while line := requests.readline():
            with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
                pid = os.fork()
                if pid == 0:
                    _redirect(out.fileno(), err.fileno())
                    break
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                answer = {
                    "code": code,
                    "out": _content(out.fileno()),
                    "err": _content(err.fileno()),
                }
            print(json.dumps(answer), file=answers, flush=True)
    if line:
        _become(**json.loads(line))


def _content(file: int) -> str:
    return os.pread(file, os.fstat(file).st_size, 0).decode(_BYTES)


def _redirect(out: int, err: int) -> None:
    os.dup2(out, 1)
    os.dup2(err, 2)


def _become(
    words: list[str],
    folder: str,
    environment: dict[str, str],
    name: str,
    given: str,
    strict: bool,
    timeout_s: int,
) -> None:
    signal.alarm(timeout_s)
    reads, writes = os.pipe()
    os.write(writes, given.encode(_BYTES))
    os.close(writes)
    os.dup2(reads, 0)
    os.close(reads)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    if strict:
        sys.warnoptions.append("error")
        warnings.simplefilter("error")
    sys.argv = [name, *words[1:]]
    if words[0] == HOLDFAST:
        sys.path[0] = str(Path(sys.executable).parent)
        import_module("holdfast.cli").main()
    else:
        sys.path[0] = str(Path(words[0]).resolve().parent)
        _run_file(words[0])


def _run_file(path: str) -> None:
    """As `python PATH` does. The module stays until the end, unlike with `runpy`."""
    main = ModuleType("__main__")
    main.__file__ = path
    main.__loader__ = SourceFileLoader("__main__", path)
    sys.modules["__main__"] = main
    exec(compile(Path(path).read_bytes(), path, "exec"), main.__dict__)
