"""An environment variable for every flag: HOLDFAST_, the command, the flag.

`enqueue --max-attempts` is HOLDFAST_ENQUEUE_MAX_ATTEMPTS; what every command takes is the same
for all, such as HOLDFAST_URL. A flag wins over its variable, an empty one is not there, and
commas stand between several values.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from cyclopts import App, ArgumentCollection, Token
from cyclopts.config import Env

EVERYWHERE = ("--url", "--json")


def variable(command: Sequence[str], flag: str) -> str:
    words = [flag] if flag in EVERYWHERE else [*command, flag]
    return "_".join(["HOLDFAST", *(word.lstrip("-").replace("-", "_").upper() for word in words)])


class Variables(Env):
    """Looks for exactly the names of the flags: the library's own also guesses at parts of names,
    by which HOLDFAST_ENQUEUE_KEY_WINDOW could be a part of --key."""

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        for argument in arguments:
            if argument.children or argument.tokens or not argument.parse:
                continue
            if not argument.name.startswith("--"):
                continue
            name = variable(commands, argument.name)
            value = os.environ.get(name)
            if value:
                for index, part in enumerate(argument.env_var_split(value, ",")):
                    argument.append(Token(keyword=name, value=part, source="env", index=index))
