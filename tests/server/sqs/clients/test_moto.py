"""`./hf torture moto` compares the outcomes of moto's tests with the table of the docs."""

import pytest

from torture.moto import PAGE, expected, read_results, report

RESULTS = """<testsuites><testsuite>
<testcase name="test_good"/>
<testcase name="test_bad"><failure message="assert 1 == 2&#10;more"/></testcase>
<testcase name="test_setup"><error message="no queue"/></testcase>
<testcase name="test_left"><skipped message="no clock"/></testcase>
</testsuite></testsuites>"""
OUTCOMES = {
    "test_good": "passed",
    "test_bad": "assert 1 == 2",
    "test_setup": "no queue",
    "test_left": "skipped",
}


def test_results_are_read() -> None:
    assert read_results(RESULTS) == OUTCOMES


def test_the_page_lists_tests() -> None:
    listed = expected(PAGE.read_text())
    assert "test_message_retention_period" in listed
    assert all(name.startswith("test_") for name in listed)


@pytest.mark.parametrize(
    ("listed", "code", "line"),
    [
        ({"test_bad", "test_setup"}, 0, "1 passed, 2 failed, 1 skipped by moto"),
        ({"test_bad"}, 1, "failed: test_setup: no queue"),
        (
            {"test_bad", "test_setup", "test_good"},
            1,
            f"passed, but {PAGE.name} lists it: test_good",
        ),
    ],
)
def test_a_difference_from_the_page_is_a_failure(
    listed: set[str], code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(OUTCOMES, listed) == code
    assert line in capsys.readouterr().out


def test_no_outcome_is_a_failure() -> None:
    assert report({}, set()) == 1
