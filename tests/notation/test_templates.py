"""Templates: placeholders, defaults and braces."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError, InvalidJob, UsageError
from holdfast.notation.templates import expand, parse


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("", ""),
        ("plain", "plain"),
        ("{header.x}", "X"),
        ("a.{header.x}.b", "a.X.b"),
        ("{header.none|d}", "d"),
        ("{header.none|}", ""),
        ("{header.x|d}", "X"),
        ("{header.a.b}", "AB"),
        ("{{{header.x}}}", "{X}"),
        ("{{header.x}}", "{header.x}"),
        ("{header.none|a|b}", "a|b"),
        ("{header.__class__|no}", "no"),
        ("%s %(x)s {{0}}", "%s %(x)s {0}"),
    ],
)
def test_templates(template: str, text: str) -> None:
    assert expand(template, {"header.x": "X", "header.a.b": "AB"}.get) == text


def test_a_value_is_never_expanded_again() -> None:
    assert expand("{header.x}", {"header.x": "{header.y}{}"}.get) == "{header.y}{}"


@pytest.mark.parametrize("template", ["{header.none}", "{header.empty}"])
def test_a_missing_value_without_a_default_is_refused(template: str) -> None:
    with pytest.raises(InvalidJob, match="is missing, which"):
        expand(template, {"header.empty": ""}.get)


@pytest.mark.parametrize("template", ["{", "}", "{}", "{a", "a}", "{a{b}}", "{header.}", "{|d}"])
def test_a_malformed_template_is_refused(template: str) -> None:
    with pytest.raises(ConfigError, match="malformed"):
        parse(template)


@given(st.text(alphabet="{}|.ab", max_size=30))
def test_any_template_is_read_or_refused(template: str) -> None:
    with suppress(UsageError):
        expand(template, lambda _: "{x}")
