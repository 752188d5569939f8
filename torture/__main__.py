"""`./hf torture NAME`: finds the crash test of that name and runs it with the arguments left."""

from __future__ import annotations

import importlib
import sys

NAMES = {
    "engines": "kill -9 and freeze processes, and the server, while they work on one store",
    "workers": "kill -9 and freeze workers, their children and their commands while they run jobs",
    "server": "kill -9 the server under clients of REST and of the remote engine",
    "poison": "jobs that raise, hang and crash beside good ones",
    "simulate": "seeded simulation: crashes, lost replies, zombies, clock jumps in virtual time",
    "machine": "the Hypothesis state machine against the reference engine",
    "power": "power cuts under the SQLite engine",
    "writers": "many processes that write to one SQLite file",
    "check": "check the recorded histories in a directory",
    "all": "all but check, one after the other",
}
HELP = "usage: ./hf torture NAME [OPTIONS]      (./hf torture NAME --help for its options)\n\n"


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP + "\n".join(f"  {name:10} {text}" for name, text in NAMES.items()))
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in NAMES:
        print(f"./hf torture: no {name!r}; one of {', '.join(NAMES)}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"torture.{name}")
    status: int = module.main(rest)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
