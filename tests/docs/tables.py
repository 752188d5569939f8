"""Generates the engine table of the README from the traits of the engines.

`python -m tests.docs.tables` rewrites it.
"""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.core import bounds
from holdfast.engines.base import Traits
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.postgres import PostgresEngine
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.engines.sqs.engine import SqsEngine

README = Path(__file__).parents[2] / "README.md"
_MARKED = re.compile(r"(<!-- engines -->\n).*?(<!-- /engines -->)", re.DOTALL)
_ENGINES: dict[str, Traits] = {
    "`memory:`": MemoryEngine().traits,
    "`sqlite:///work.db`": SQLiteEngine("work.db").traits,
    "`postgresql://host/db`": PostgresEngine("postgresql://host/db").traits,
    "`sqs://eu-west-1/`": SqsEngine("eu-west-1").traits,
}
_ROWS = {
    "survives the process": "durable",
    "shared by processes": "shared",
    "priorities": "priority",
    "once-only keys": "keys",
    "renewal and fencing tokens": "fencing",
    "enqueue and settle in your own transaction": "transactional",
    "search, edit, redrive": "inspect",
}


def engine_table() -> str:
    """Format the table as Markdown."""
    lines = [f"| | {' | '.join(_ENGINES)} |", f"|---|{'---|' * len(_ENGINES)}"]
    for label, trait in _ROWS.items():
        marks = ("yes" if getattr(traits, trait) else "no" for traits in _ENGINES.values())
        lines.append(f"| {label} | {' | '.join(marks)} |")
    smallest, largest = bounds.QUEUE_PAYLOAD_MAX, bounds.PAYLOAD_MAX
    assert {traits.payload_max for traits in _ENGINES.values()} == {smallest, largest}
    most, largest = smallest // 1024, largest // 1024
    batches = {traits.batch_max for traits in _ENGINES.values()}
    assert len(batches) == 1
    lines.append("")
    lines.append(
        f"Payloads up to {most:,} KiB, or up to {largest:,} KiB where a queue's `payload_max` "
        f"allows it (not on SQS); up to {batches.pop():,} jobs in one call."
    )
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    """Return the README text with the current table."""
    assert _MARKED.search(text), (
        "README.md must contain the marks <!-- engines --> and <!-- /engines -->"
    )
    return _MARKED.sub(lambda match: match[1] + engine_table() + match[2], text)


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
