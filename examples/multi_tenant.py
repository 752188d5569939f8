"""Bookings of many tenants that share one queue: a large tenant cannot make the others wait.

Shows fairness between tenants with weights, and groups: the bookings of an account run one at a
time and in order, also if one of them has to be retried, while other accounts go on.

    python multi_tenant.py acme main 100 -30 -70       # three bookings, in this order
    holdfast worker run multi_tenant.py:app
    holdfast queue tenants bookings                    # who waits, and each tenant's share

ACCOUNTS names the folder of the statements, one file for each account.
"""

import os
import sys
from pathlib import Path

from holdfast import Context, Holdfast

app = Holdfast()

FOLDER = Path(os.environ.get("ACCOUNTS", "accounts"))
WEIGHTS = {"gold": 3}
"""Three jobs of the tenant gold run for one of each other tenant."""


@app.task(queue="bookings", backoff="constant(1s)", max_attempts=10)
def book(ctx: Context, account: str, amount: int) -> int:
    """Add a booking to the statement of an account, and return the new balance."""
    FOLDER.mkdir(exist_ok=True)
    statement = FOLDER / f"{ctx.tenant}-{account}.txt"
    lines = statement.read_text().splitlines() if statement.exists() else []
    balance = int(lines[-1].split()[-1]) if lines else 0
    if lines and lines[-1].startswith(ctx.id):
        return balance  # written by an attempt whose worker died before it could report
    if balance + amount < 0:
        raise ValueError(f"{account} has {balance} and cannot pay {-amount}")
    with statement.open("a") as file:
        file.write(f"{ctx.id} {amount:+} {balance + amount}\n")
    return balance + amount


def enqueue(tenant: str, account: str, amounts: list[int]) -> None:
    # Declaring the queue again changes nothing: every producer may do it.
    app.run(app.declare("bookings", fairness="shares", weights=WEIGHTS))
    bound = book.using(tenant=tenant, group=f"{tenant}/{account}")
    bound.enqueue_many([(account, amount) for amount in amounts])
    print(len(amounts), "bookings are enqueued for", tenant)


if __name__ == "__main__":
    enqueue(sys.argv[1], sys.argv[2], [int(word) for word in sys.argv[3:]])
