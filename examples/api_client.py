"""Fetches products from an API that allows ten requests a second and two at a time.

Shows a rate limit and a concurrency limit that hold for all workers on all machines together, a
pause that the API asks for, and typed results of many jobs.

    holdfast worker run api_client.py:app --prefetch 0
    python api_client.py 1 2 3 4 5

API names the address, by default http://localhost:8080. A rate counts jobs when a worker takes
them from the store: with --prefetch 0 it takes none before it can start them.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from decimal import Decimal
from http import HTTPStatus

from holdfast import Bury, Holdfast, JobFailed, Release

app = Holdfast()

API = os.environ.get("API", "http://localhost:8080")


@dataclass
class Product:
    id: int
    name: str
    price: Decimal


@app.task(queue="api", rate="10/s", concurrency=2, timeout="1m", max_attempts=5)
def fetch(id: int) -> Product:
    try:
        with urllib.request.urlopen(f"{API}/products/{id}", timeout=30) as response:
            found = json.load(response)
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.TOO_MANY_REQUESTS:
            # Not the job's fault: it runs again after the pause, and no attempt is counted.
            pause = error.headers.get("Retry-After", "1")
            raise Release("the API asks to wait", after=float(pause)) from None
        if error.code == HTTPStatus.NOT_FOUND:
            raise Bury(f"there is no product {id}") from None
        raise  # counts as a failed attempt, and is retried with the default backoff
    return Product(id, found["name"], Decimal(found["price"]))


if __name__ == "__main__":
    # One commit for all of them. They run in any order; the results come in the order of the calls.
    for job in fetch.enqueue_many([(int(word),) for word in sys.argv[1:]]):
        try:
            product = job.result(timeout="5m")
            print(f"{product.id}: {product.name}, {product.price} EUR")
        except JobFailed as failed:
            print(failed)
