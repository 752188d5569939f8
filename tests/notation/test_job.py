"""The one definition of a job's fields: lines, Python options, flags and HTTP bodies agree."""

import typing
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest

from holdfast.cli.flags import EditFlags, JobFlags, TickFlags
from holdfast.core.model import NewJob
from holdfast.errors import InvalidJob
from holdfast.notation import options
from holdfast.notation.job import FIELDS, JobLine, JobOptions, TickOptions
from holdfast.notation.job_lines import JobDefaults, make_job, read_line
from holdfast.notation.options import new_job
from holdfast.notation.synonyms import READ_ONLY
from holdfast.server.rest.jobs import ChangesBody
from holdfast.server.rest.shapes import AnyJobBody, NewJobBody, TickBody

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
# Other ways to write the task, the payload and max_attempts, which Python does not need.
NOT_OPTIONS = {"task", "payload", "command", "webhook", "cwd", "env", "max_retries"}
PER_JOB = {name for name, field in FIELDS.items() if field.per_job}
PLACE = {name for name, field in FIELDS.items() if field.place}


def names(struct: type[msgspec.Struct]) -> set[str]:
    return set(struct.__struct_fields__)


def test_python_options_have_every_field() -> None:
    assert set(JobOptions.__annotations__) == set(FIELDS) - NOT_OPTIONS
    # The payload of a task is always JSON.
    assert set(TickOptions.__annotations__) == set(FIELDS) - NOT_OPTIONS - PER_JOB - {
        "content_type"
    }


def test_a_line_has_every_field() -> None:
    assert list(JobLine.__struct_fields__) == list(FIELDS)


def test_choices_are_those_of_python_options() -> None:
    hints = typing.get_type_hints(JobOptions)
    lines = typing.get_type_hints(JobLine)
    for name in ("key_policy", "key_hold", "after_on", "parent_death"):
        assert hints[name] == lines[name] == FIELDS[name].flag | None
        assert FIELDS[name].http == FIELDS[name].flag


def test_bodies_have_the_fields_of_their_scope() -> None:
    assert names(AnyJobBody) == {*FIELDS, *READ_ONLY}
    assert names(NewJobBody) == {*FIELDS, *READ_ONLY} - PLACE
    assert names(TickBody) == set(FIELDS) - PER_JOB
    assert NewJobBody.__struct_fields__[:3] == ("task", "payload", "id")


def test_edits_over_http_have_the_fields_of_the_flags() -> None:
    editable = {name for name, field in FIELDS.items() if field.edit}
    assert names(ChangesBody) - {"text"} == editable
    assert {field.name for field in fields(EditFlags())} == editable


def test_flags_have_the_fields_of_their_scope() -> None:
    assert [field.name for field in fields(JobFlags())] == list(FIELDS)
    assert {field.name for field in fields(TickFlags())} == set(FIELDS) - PER_JOB


def test_the_documentation_describes_every_field() -> None:
    rows = [f"| `{name}` | {field.value} | {field.help} |" for name, field in FIELDS.items()]
    assert "\n".join(rows) + "\n" in DOCS.read_text()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"run_at": "2030-01-31"}', 'run_at "2030-01-31": expected a date and time such as 2030'),
        ('{"run_at": 5}', 'run_at "5": expected a date and time such as 2030'),
        ('{"priority": "high"}', "priority: expected int, got str"),
        ('{"colour": 1}', "unknown field colour: a job has task, payload, "),
        ('{"prority": 1}', "unknown field prority: did you mean priority?"),
        ("[]", "the job: expected object, got array"),
        ("{", "the job is not JSON"),
        (b'{"task": "\xff"}', "the job is not UTF-8"),
    ],
)
def test_a_line_that_is_wrong_names_the_field(line: str | bytes, says: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        read_line(line)
    assert str(caught.value).startswith(says)


def test_only_one_id_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def new_id() -> str:
        made.append(f"id{len(made)}")
        return made[-1]

    monkeypatch.setattr(options, "new_id", new_id)
    assert new_job("t", None, {"id": "mine"}).id == "mine"
    job = make_job(read_line('{"task": "t"}'), JobDefaults({}, None, new_id))
    assert isinstance(job, NewJob)
    assert (job.id, made) == ("id0", ["id0"])
    assert new_job("t", None, {}).id == "id1"
