"""Tasks that fail in two ways until the file `fixed` is in their folder."""

from pathlib import Path

from holdfast import Holdfast

app = Holdfast("memory:")


def is_fixed(folder: str) -> bool:
    return (Path(folder) / "fixed").exists()


@app.task(name="charge")
def charge(folder: str, order: int) -> int:
    return total(folder, order)


def total(folder: str, order: int) -> int:
    if not is_fixed(folder):
        raise ValueError(f"order {order} has no total")
    return order


@app.task(name="ship")
async def ship(folder: str, order: int) -> int:
    if not is_fixed(folder):
        raise LookupError(f"no address for 'customer-{order}'")
    return order
