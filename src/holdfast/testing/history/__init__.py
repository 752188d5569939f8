"""What happened, line by line: a journal that survives kill -9, and an engine that writes it."""

from holdfast.testing.history.journal import Journal, read_journals, to_file
from holdfast.testing.history.lines import Entry, Line
from holdfast.testing.history.recorded import Recorded, dump

__all__ = ["Entry", "Journal", "Line", "Recorded", "dump", "read_journals", "to_file"]
