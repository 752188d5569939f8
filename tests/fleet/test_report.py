"""The Markdown report."""

from holdfast_fleet.model import PoolReport
from holdfast_fleet.report import markdown

KNOWN = PoolReport(
    pool="blue",
    hours=24,
    running=2,
    stopped=1,
    idle=1,
    assigned=1,
    idle_cost=0.0789,
    compute_cost=1.6128,
    utilization=1 / 3,
)


def test_a_report() -> None:
    assert markdown([KNOWN], at="2025-11-25T09:00:00Z") == (
        "# Pools on 2025-11-25T09:00:00Z\n"
        "\n"
        "Costs are US dollars for 24 hours.\n"
        "\n"
        "| pool | running | stopped | idle | utilization | idle cost | compute cost |\n"
        "|---|---:|---:|---:|---:|---:|---:|\n"
        "| blue | 2 | 1 | 1 | 33% | 0.08 | 1.61 |\n"
        "| **all** | 2 | 1 | 1 |  | 0.08 | 1.61 |\n"
    )


def test_unknown_values_and_hostile_names() -> None:
    text = markdown([KNOWN, PoolReport(pool="a|b\n# c", hours=24)], at="x", truncated=True)
    assert "| a\\|b?# c | unknown | unknown | unknown | unknown | unknown | unknown |" in text
    assert "| **all** | unknown | unknown | unknown |  | unknown | unknown |" in text
    assert "**Truncated**" in text
    assert "There are no pools." in markdown([], at="x")
