"""How a handler ends other than by returning or failing: it raises one of these.

They say what should become of the job; anything else that is raised is a failure, and the
policy of the job, its task and its queue decides.
"""

from __future__ import annotations

from holdfast.durations import Duration, to_ms
from holdfast.errors import UsageError


class Outcome(Exception):
    """Not an error: catch it by this name only to let it through."""


class Retry(Outcome):
    """Run it again: after so long, or, without `after`, when the backoff says. It counts as an
    attempt, and after the last one the job is a dead letter."""

    def __init__(self, text: str = "", *, after: Duration | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.after_ms = None if after is None else to_ms("after", after, UsageError)


class Bury(Outcome):
    """It cannot be done: a dead letter at once."""

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self.text = text


class Release(Outcome):
    """Not now, through no fault of the job: the attempt is given back, at most twenty times."""

    def __init__(self, text: str = "", *, after: Duration = 0) -> None:
        super().__init__(text)
        self.text = text
        self.after_ms = to_ms("after", after, UsageError)


class Cancelled(Outcome):
    """Stop for good, neither done nor dead: the answer to `ctx.cancelled`."""

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self.text = text
