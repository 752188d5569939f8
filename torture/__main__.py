"""`./hf torture NAME`: runs the crash test of that name with the remaining arguments."""

from __future__ import annotations

import importlib
import sys

NAMES = {
    "engines": "kill and freeze processes and the database server while they work on one store",
    "workers": "kill and freeze workers, their children and their commands while they run jobs",
    "server": "kill the server while clients use it over REST and the remote engine",
    "sqs": "kill the server while SQS clients use it, some with boto3",
    "aws": "kill workers, gates and distributors on SQS, behind a proxy with faults",
    "rabbitmq": "kill RabbitMQ, ledger, gates and dead-letter handlers, behind a proxy with faults",
    "dashboard": "open every page with hostile text, kill the server under the page and its acts",
    "moto": "run moto's own SQS tests, from its source package, against the server",
    "poison": "run jobs that raise, hang and crash among good ones",
    "simulate": "simulate crashes, lost responses and clock jumps in virtual time, by seed",
    "migration": "kill processes while they migrate a PostgreSQL store of an older version",
    "machine": "compare an engine with the reference engine in random histories (Hypothesis)",
    "power": "simulate power cuts under the SQLite engine",
    "writers": "measure how long many processes wait to write to one SQLite file",
    "check": "check recorded histories in a directory",
    "all": "run all tests except check, one after the other",
}
HELP = "usage: ./hf torture NAME [OPTIONS]\n\nSee ./hf torture NAME --help for its options.\n\n"


def main(arguments: list[str]) -> int:
    """Run the crash test named in the arguments; return its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP + "\n".join(f"  {name:10} {text}" for name, text in NAMES.items()))
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in NAMES:
        print(
            f"./hf torture: unknown test {name!r}; choose from {', '.join(NAMES)}", file=sys.stderr
        )
        return 2
    module = importlib.import_module(f"torture.{name}")
    status: int = module.main(rest)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
