"""Log lines on the standard error, without a single control byte."""

from __future__ import annotations

import logging

from holdfast.core.text import printable


class PrintableFormatter(logging.Formatter):
    """What is logged may hold a job's own text."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def log_to_stderr(program: str, level: int) -> None:
    """For programs of our own; a program that embeds Holdfast decides for itself."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter(f"{program}: %(message)s"))
    logging.basicConfig(handlers=[handler], level=level)
