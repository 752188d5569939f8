"""Each public module can be imported first: it relies on nothing that another one has loaded.
Most tests would not notice, because their process has loaded everything."""

import subprocess
import sys

import holdfast
from tests.sources import read_all

PUBLIC = ("", "django", "engines.base", "errors", "testing")
# Modules of public names that are loaded on first use.
HOMES = (*holdfast._HOMES.values(), "testing.modes", "testing.sqs")
# A process without any module of Holdfast is copied for each one.
PROGRAM = """
import asyncio, msgspec, os, sys
for name in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        __import__(name)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        print(name)
"""


def test_each_public_module_can_be_imported_first() -> None:
    found = {each.module for each in read_all()}
    integrations = {each for each in found if each.startswith("integrations.")}
    modules = {*PUBLIC, *HOMES, *integrations}
    assert modules <= found
    names = [f"holdfast.{each}".rstrip(".") for each in sorted(modules)]
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, *names],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (ran.stdout, ran.stderr) == ("", "")
