"""Queue names ↔ names of SQS queues, which have no dots and at most 80 characters. Pure.

A dot is written as two underscores; a longer run of dots and underscores as three underscores, a
letter for each (d, u) and one underscore. So `mail.eu` is `mail__eu`, and every name can be read
back. A name that ends in `.fifo` keeps that ending: SQS requires it of FIFO queues.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from holdfast.core import bounds
from holdfast.errors import ConfigError, InvalidQueue

NAME_MAX: Final = 80
DEAD_SUFFIX: Final = "-dlq"
FIFO_SUFFIX: Final = ".fifo"
_NAMESPACE_END: Final = "____"
"""No queue name is written with so many underscores in a row."""
_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]{0,60}\Z")
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9-]{1,40}\Z")


class ReadName(NamedTuple):
    """A queue, or the dead letters of a queue."""

    queue: str
    is_dead: bool


class QueueNames:
    """The names of the queues under one prefix; those of a namespace begin with it."""

    def __init__(self, prefix: str = "", namespace: str = "default") -> None:
        if not _PREFIX.match(prefix):
            raise ConfigError(
                f"the prefix {prefix[:80]!r} is not valid: use up to 60 characters of A-Z a-z 0-9 _"
                " -, e.g. sqs://eu-west-1/shop-"
            )
        if not _NAMESPACE.match(namespace):
            raise ConfigError(
                f"the namespace {namespace[:80]!r} cannot be part of the names of SQS queues: use"
                " up to 40 characters of A-Z a-z 0-9 -"
            )
        is_default = namespace == "default"
        self.prefix: str = prefix if is_default else f"{prefix}{namespace}{_NAMESPACE_END}"
        self.length_max: int = max(1, NAME_MAX - len(self.prefix) - len(DEAD_SUFFIX))

    def write(self, queue: str, *, dead: bool = False) -> str:
        """The SQS name of a queue, or of its dead letters. Raises InvalidQueue."""
        base, end = _split_fifo(queue)
        if base.endswith(DEAD_SUFFIX):
            raise InvalidQueue(
                f"the name of queue {queue} ends in {DEAD_SUFFIX}: on SQS such a queue holds the"
                f" dead letters of {base.removesuffix(DEAD_SUFFIX)}{end}; use another name"
            )
        written = f"{self.prefix}{_escaped(base)}"
        longest = len(written) + len(DEAD_SUFFIX) + len(end)
        if not base or longest > NAME_MAX:
            raise InvalidQueue(
                f"queue name {queue} is too long for SQS: with the prefix, {DEAD_SUFFIX} for its"
                f" dead letters and two characters for each dot it has {longest} characters; the"
                f" maximum is {NAME_MAX}"
                if base
                else f"queue name {queue} is only the ending of a FIFO queue: put a name before it"
            )
        return f"{written}{DEAD_SUFFIX if dead else ''}{end}"

    def read(self, written: str) -> ReadName | None:
        """The queue that an SQS name stands for; None if it is none of this prefix."""
        if not written.startswith(self.prefix):
            return None
        base, end = _split_fifo(written.removeprefix(self.prefix))
        is_dead = base.endswith(DEAD_SUFFIX)
        queue = _unescaped(base.removesuffix(DEAD_SUFFIX) if is_dead else base) + end
        try:
            is_ours = self.write(queue, dead=is_dead) == written
        except InvalidQueue:
            return None
        return ReadName(queue, is_dead) if is_ours and bounds.QUEUE_NAME.match(queue) else None


def is_fifo(queue: str) -> bool:
    """Whether this is the name of a FIFO queue, ours or the service's."""
    return queue.endswith(FIFO_SUFFIX)


def _split_fifo(name: str) -> tuple[str, str]:
    if is_fifo(name):
        return name.removesuffix(FIFO_SUFFIX), FIFO_SUFFIX
    return name, ""


def _escaped(name: str) -> str:
    return re.sub(r"[._]+", lambda found: _escaped_run(found[0]), name)


def _escaped_run(run: str) -> str:
    if len(run) == 1:
        return "__" if run == "." else run
    letters = run.replace("_", "u").replace(".", "d")
    return f"___{letters}_"


def _unescaped(written: str) -> str:
    return re.sub(r"___([ud]{2,})_|__", lambda found: _unescaped_run(found[1]), written)


def _unescaped_run(letters: str | None) -> str:
    return "." if letters is None else letters.replace("d", ".").replace("u", "_")
