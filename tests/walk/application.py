"""One task, and a producer that prints when it was idle and when each of its jobs ran."""

import json
import sys
import time
from collections.abc import Callable

from holdfast import Holdfast

app = Holdfast()


@app.task(name="double")
def double(number: int) -> int:
    return 2 * number


def span(run: Callable[[], object]) -> dict[str, int]:
    """The time that a call took."""
    begin = time.monotonic_ns()
    run()
    return {"begin": begin, "end": time.monotonic_ns()}


def produce(number: int) -> dict[str, int]:
    """Enqueue one job and wait for its result."""
    begin = time.monotonic_ns()
    handle = double.enqueue(number)
    enqueued = time.monotonic_ns()
    assert handle.result(timeout=60) == 2 * number
    return {"begin": begin, "enqueued": enqueued, "end": time.monotonic_ns()}


if __name__ == "__main__":
    # The first job opens the store and starts the child.
    produce(0)
    idle = span(lambda: time.sleep(float(sys.argv[2])))
    print(json.dumps({"idle": idle, "jobs": [produce(n) for n in range(int(sys.argv[1]))]}))
