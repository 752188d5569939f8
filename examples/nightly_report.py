"""A report of the day's sales, every night at two in Berlin and whenever somebody asks for it.

Shows a schedule in code, a task with typed arguments, and a typed result.

    holdfast worker run nightly_report.py:app          # stores the schedule, and runs it
    holdfast schedule list                             # when it runs next
    python nightly_report.py 2026-05-01                # the report of one day, now

ORDERS names a CSV file with the columns day, product and price; REPORTS a folder for the reports.
"""

import csv
import os
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

from holdfast import Holdfast

app = Holdfast()

ORDERS = Path(os.environ.get("ORDERS", "orders.csv"))
REPORTS = Path(os.environ.get("REPORTS", "reports"))
ZONE = "Europe/Berlin"


@dataclass
class Report:
    day: date
    orders: int
    revenue: Decimal
    best: str | None
    file: Path


# If no worker ran at two, the next one enqueues a single report when it starts.
@app.schedule(cron="0 2 * * *", timezone=ZONE, name="nightly", missed="once")
@app.task(queue="reports", max_attempts=5, backoff="constant(10m)")
def report(day: date | None = None) -> Report:
    """The report of a day, by default of yesterday. A second run writes the same file."""
    if day is None:
        day = datetime.now(ZoneInfo(ZONE)).date() - timedelta(days=1)
    with ORDERS.open(newline="") as file:
        orders = [row for row in csv.DictReader(file) if row["day"] == day.isoformat()]
    revenue = sum((Decimal(row["price"]) for row in orders), Decimal())
    sold = Counter(row["product"] for row in orders).most_common(1)
    REPORTS.mkdir(exist_ok=True)
    path = REPORTS / f"{day}.txt"
    path.write_text(f"{day}: {len(orders)} orders, {revenue} EUR\n")
    return Report(day, len(orders), revenue, sold[0][0] if sold else None, path)


if __name__ == "__main__":
    # `result` returns a Report: its day is a date and its revenue a Decimal.
    done = report.enqueue(date.fromisoformat(sys.argv[1])).result(timeout="1m")
    print(f"{done.day:%d %B %Y}: {done.orders} orders, {done.revenue} EUR, mostly {done.best}")
    print("see", done.file)
