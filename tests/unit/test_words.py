"""One word for each concept: the words the project does not use stay out of what users see.

Looked at: public functions, classes, parameters and fields of the package, and the headings of
the README and the documentation. The SQS, AMQP and fleet edges speak their protocol's words.
"""

import ast
import itertools
import re
from collections.abc import Iterator

import pytest

from tests.sources import ROOT, Source, read_all

# The word to use, and those it replaces.
INSTEAD_OF: dict[str, str] = {
    "queue": "topic channel",
    "job, task or payload": "message item args job_kind task_kind",
    "enqueue": "publish send push produce",
    "lease": "claim lock reserve visibility",
    "renew": "extend touch",
    "attempt": "try execution",
    "a verdict": "ack nack reject discard snooze",
    "settle": "finalize report",
    "redrive or dead letter": "poison requeue",
    "overdue or expired": "stuck stalled",
    "worker, handler or runner": "consumer actor executor",
    "schedule or key": "periodic dedup_id",
    "engine": "backend driver adapter",
    "upkeep": "maintenance gc sweeper",
}
NEVER = {word: good for good, words in INSTEAD_OF.items() for word in words.split()}

EDGES = (
    *("engines.broker", "engines.brokered", "engines.rabbitmq", "engines.sqs", "gates"),
    "ops.gates",
    *(
        "core.dead_messages",
        "upkeep.dead_letter_handler",
        "upkeep.queue_watch",
        "server.sqs",
        "fleet",
    ),
)
EDGE_PAGES = ("sqs", "sqs-compatibility", "rabbitmq", "fleet", "gates")

# Words that mean something else where they stand, and what they mean there.
OTHER_MEANINGS: dict[tuple[str, str], str] = {
    ("core.model", "message"): "the text of an exception",
    ("core.model", "reject"): "the worker itself turned the job away too often",
    ("alerts", "message"): "a message of a broker",
    ("events", "message"): "a message of a broker",
    ("telemetry", "message"): "a message of a broker",
    ("ops.doctor", "message"): "a message of a broker",
    ("ops.rejected", "reject"): "the reason of a dead letter that no job can be made of",
    ("ops.dead_letters", "poison"): "the flag that a handler of dead letters gets",
    ("django", "backend"): "what Django calls what is behind its tasks",
    ("django", "args"): "what Django calls a task's arguments by position",
    ("server", "send"): "what a web server does with an answer",
    ("server", "message"): "the text of an error, or a part of HTTP",
    ("server.live", "topic"): "what a viewer of the live stream watches",
    ("server", "produce"): "the scope of those who enqueue, or what an answer is",
    ("engines.remote", "message"): "the text of an error, or a part of HTTP",
    ("process", "message"): "the text of a log line",
    ("engines.sqlite", "lock"): "a lock of the file system",
    ("engines.postgres", "lock"): "a lock of the database",
}


def test_public_names() -> None:
    faults = [fault for source in read_all() for fault in name_faults(source)]
    assert not faults, "\n".join(faults)


def test_headings() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    faults = [
        f"{page.relative_to(ROOT)}: {fault}"
        for page in pages
        if page.exists() and not any(edge in page.stem for edge in EDGE_PAGES)
        for fault in heading_faults(page.read_text())
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "text",
    [
        "def claim_job(): ...",
        "async def requeue(): ...",
        "class MessageStore: ...",
        "class Store:\n    visibility_ms: int",
        "def lease(*, consumers: int): ...",
        "class Engine:\n    def ack(self): ...",
        "def f(locked): ...",
        "class JobKind: ...",
    ],
)
def test_a_wrong_name_is_found(text: str) -> None:
    assert name_faults(Source("worker.sample", text))


@pytest.mark.parametrize(
    "text",
    [
        "def _claim(): ...",
        "class _Lock:\n    def acquire(self): ...",
        "def block(): ...",
        "def track(): ...",
        "def f():\n    message = 1",
        "def load(kind): ...",
        "class Contract:\n    async def test_it_pushes_the_deadline(self): ...",
    ],
)
def test_a_good_name_is_not_found(text: str) -> None:
    assert not name_faults(Source("worker.sample", text))


def test_headings_are_read_and_code_is_not() -> None:
    assert heading_faults("# Acking messages")
    assert not heading_faults("# Jobs\nmessages\n```\n# ack the message\n```\n## `ack` in SQS\n")


def name_faults(source: Source) -> list[str]:
    if source.is_in(*EDGES):
        return []
    return [
        f"holdfast.{source.module} line {line}: {name} says {word}; the word is {NEVER[word]}"
        for line, name in public_names(source.tree)
        for word in never_words(name)
        if not any(word == other and source.is_in(part) for part, other in OTHER_MEANINGS)
    ]


def public_names(node: ast.Module | ast.ClassDef) -> Iterator[tuple[int, str]]:
    for child in node.body:
        match child:
            case ast.ClassDef(name=name) if not name.startswith("_"):
                yield child.lineno, name
                yield from public_names(child)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                # The name of a shipped test is a sentence, which nobody calls.
                if not name.startswith(("_", "test_")) or name == "__init__":
                    yield child.lineno, name
                    given = child.args
                    for parameter in (*given.posonlyargs, *given.args, *given.kwonlyargs):
                        yield parameter.lineno, parameter.arg
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                yield child.lineno, name
            case ast.Assign(targets=[ast.Name(id=name)]) if not name.startswith("_"):
                yield child.lineno, name
            case _:
                pass


def heading_faults(text: str) -> list[str]:
    prose = re.sub(r"(?ms)^```.*?^```", "", text)
    return [
        f"the heading {heading!r} says {word}; the word is {NEVER[word]}"
        for heading in re.findall(r"(?m)^#+ +(.*)$", prose)
        # "Try it" is an invitation, not an attempt.
        for word in never_words(re.sub(r"`[^`]*`", "", heading)) - {"try"}
    ]


def never_words(text: str) -> set[str]:
    """Words are split at underscores and capitals, and found in their usual endings too."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", text)]
    pairs = [f"{first}_{second}" for first, second in itertools.pairwise(words)]
    return {found for word in words + pairs if (found := base_form(word))}


def base_form(word: str) -> str | None:
    for ending in ("", "s", "es", "d", "ed", "ing", "er"):
        stem = word.removesuffix(ending) if ending else word
        if word.endswith(ending) and stem in NEVER:
            return stem
    return None
