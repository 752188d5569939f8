"""The flags about a new job: each has the name of its key in JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from holdfast import newjob
from holdfast.errors import InvalidJob

_Pairs = list[str] | None


def _flag(help: str, *names: str) -> Parameter:
    return Parameter(name=list(names) or None, help=help)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line can say about a job; each is a key of its JSON too."""

    task: Annotated[str | None, _flag("The name of the code that does it: mail:send.")] = None
    payload: Annotated[str | None, _flag("What the task gets, as JSON.")] = None
    command: Annotated[str | None, _flag("A command for the shell, instead of a task.")] = None
    webhook: Annotated[str | None, _flag("A url to send the payload to, instead of a task.")] = None
    cwd: Annotated[str | None, _flag("The folder that the command runs in.")] = None
    env: Annotated[_Pairs, _flag("For the command: NAME=VALUE, again for more.")] = None
    id: Annotated[str | None, _flag("An id of your own; a known one adds nothing.")] = None
    queue: Annotated[str | None, _flag("The queue to put it in: default.")] = None
    to: Annotated[str | None, _flag("The worker that shall run it, instead of a queue.")] = None
    reroute: Annotated[
        _Pairs,
        _flag("If that one does not take it: any, or those labelled NAME=VALUE."),
    ] = None
    priority: Annotated[int | None, _flag("-100 to 100, higher first.")] = None
    delay: Annotated[str | None, _flag("Not before so long from now: 10m.")] = None
    run_at: Annotated[str | None, _flag("Not before then: 2030-01-31T12:00:00Z.")] = None
    expires: Annotated[str | None, _flag("Dead if not started by then: 1h.")] = None
    key: Annotated[str | None, _flag("Once-only: a key still held adds nothing.")] = None
    key_window: Annotated[str | None, _flag("How long the key is held: 1d.")] = None
    key_policy: Annotated[
        Literal["keep", "replace", "merge"] | None,
        _flag("What the job that holds the key does: it stays, or takes the new payload."),
    ] = None
    tenant: Annotated[str | None, _flag("Whose it is.")] = None
    group: Annotated[str | None, _flag("Its jobs run one by one, as they came.")] = None
    labels: Annotated[
        _Pairs, _flag("To be found by: NAME=VALUE, again for more.", "--labels", "--label")
    ] = None
    headers: Annotated[
        _Pairs, _flag("Carried along: NAME=VALUE, again for more.", "--headers", "--header")
    ] = None
    lease: Annotated[str | None, _flag("How long a silent worker keeps it: 30s.")] = None
    timeout: Annotated[str | None, _flag("How long a run may take: 5m.")] = None
    max_attempts: Annotated[int | None, _flag("Runs in all; 0 is unlimited.")] = None
    max_retries: Annotated[int | None, _flag("Runs after the first, instead.")] = None
    max_crashes: Annotated[int | None, _flag("Crashes until it is given up.")] = None
    backoff: Annotated[str | None, _flag('Between runs: "exponential(2s, max=10m)".')] = None
    content_type: Annotated[str | None, _flag("What the payload is: application/json.")] = None
    after: Annotated[
        list[str] | None, _flag("The id of a job that must end first; again for more.")
    ] = None
    after_on: Annotated[
        Literal["success", "death", "either"] | None, _flag("How those must end: success.")
    ] = None
    parent_death: Annotated[
        Literal["cancel", "run", "hold"] | None,
        _flag("What it does when one of those died instead: cancel."),
    ] = None

    def line(self) -> newjob.Line:
        values: dict[str, Any] = asdict(self)
        for name in ("env", "labels", "headers"):
            values[name] = _pairs(name, values[name])
        values["reroute"] = self.reroute == ["any"] or _pairs("reroute", self.reroute)
        payload = values.pop("payload")
        line = newjob.from_values(values)
        if payload is not None:
            is_text = self.content_type not in (None, "application/json")
            line.payload = msgspec.Raw(msgspec.json.encode(payload) if is_text else payload)
        return line


_Never = Annotated[None, Parameter(parse=False)]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class TickFlags(Flags):
    """What can be said about the job of every tick of a schedule: nothing that is one job's own."""

    id: _Never = None
    key: _Never = None
    key_window: _Never = None
    key_policy: _Never = None
    run_at: _Never = None
    after: _Never = None
    after_on: _Never = None
    parent_death: _Never = None


def _pairs(name: str, given: list[str] | None) -> dict[str, str] | None:
    if not given:
        return None
    pairs = [pair.partition("=") for pair in given]
    for key, equals, value in pairs:
        if not key or not equals:
            raise InvalidJob(f"{name} {(key + value)[:80]!r} is not NAME=VALUE")
    return {key: value for key, _, value in pairs}
