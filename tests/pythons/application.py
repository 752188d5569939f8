"""One task, and a program that enqueues it, waits for its result if it is told to, and closes
nothing."""

import sys

from holdfast import Holdfast

app = Holdfast()


@app.task(name="double")
def double(number: int) -> int:
    return 2 * number


if __name__ == "__main__":
    handle = double.enqueue(21)
    if "--wait" in sys.argv:
        print(handle.result(timeout=60))
