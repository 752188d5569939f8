"""Thumbnails of PNG files, and a page that shows them when all of them are there.

Shows a limit on work that takes memory, a batch of jobs with one more at its end, typed results,
and dead letters for files that no retry can mend. PNG is read and written with the standard
library, so the program needs nothing else.

    python thumbnails.py photos/*.png                  # enqueue; writes to thumbnails/
    holdfast worker run thumbnails.py:app
"""

import html
import struct
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

from holdfast import Bury, Holdfast

app = Holdfast()

WIDTH = 64
SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
"""Bytes of a pixel by colour type: grey, RGB, grey with alpha, RGB with alpha."""


@dataclass
class Thumbnail:
    path: Path
    width: int
    height: int


# At most four at a time, in all workers on all machines together.
@app.task(concurrency=4, timeout="1m", give_up_on=(zlib.error, struct.error, FileNotFoundError))
def thumbnail(source: Path, folder: Path) -> Thumbnail:
    rows, colour = read_png(source.read_bytes())
    step = CHANNELS[colour]
    factor = max(1, len(rows[0]) // step // WIDTH)
    small = [shrink(rows[y : y + factor], step, factor) for y in range(0, len(rows), factor)]
    folder.mkdir(exist_ok=True)
    # Written beside it and renamed: a worker that dies leaves no half of a file, and a second
    # attempt writes the same file again.
    path = folder / source.name
    path.with_suffix(".part").write_bytes(png(small, colour))
    path.with_suffix(".part").replace(path)
    return Thumbnail(path, len(small[0]) // step, len(small))


@app.task
def gallery(folder: Path) -> int:
    """Write a page with the thumbnails, and return how many it has."""
    names = [html.escape(path.name) for path in sorted(folder.glob("*.png"))]
    (folder / "index.html").write_text("\n".join(f'<img src="{name}">' for name in names))
    return len(names)


def shrink(rows: list[bytearray], step: int, factor: int) -> bytes:
    """One row of averages over squares of this many pixels."""
    size = factor * step
    squares = [[row[at : at + size] for row in rows] for at in range(0, len(rows[0]), size)]
    averages = bytearray()
    for square in squares:
        for channel in range(step):
            values = [value for part in square for value in part[channel::step]]
            averages.append(sum(values) // len(values))
    return bytes(averages)


def read_png(data: bytes) -> tuple[list[bytearray], int]:
    """The rows of pixels, and the colour type."""
    if not data.startswith(SIGNATURE):
        raise Bury("this is not a PNG file")
    width, height, depth, colour, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    if depth != 8 or colour not in CHANNELS or interlaced:
        raise Bury(f"depth {depth}, colour type {colour} is not supported: save it as plain RGB")
    packed, at = b"", len(SIGNATURE)
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        packed += data[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += length + 12
    pixels, step, rows = zlib.decompress(packed), CHANNELS[colour], [bytearray(width * 4)]
    for start in range(0, height * (width * step + 1), width * step + 1):
        row = bytearray(pixels[start + 1 : start + 1 + width * step])
        rows.append(unfilter(pixels[start], row, rows[-1], step))
    return rows[1:], colour


def unfilter(kind: int, row: bytearray, above: bytearray, step: int) -> bytearray:
    for at in range(len(row)):
        left, corner = (row[at - step], above[at - step]) if at >= step else (0, 0)
        up, nearest = above[at], left + above[at] - corner
        paeth = min((left, up, corner), key=lambda value: abs(nearest - value))
        row[at] = (row[at] + (0, left, up, (left + up) // 2, paeth)[kind]) % 256
    return row


def png(rows: list[bytes], colour: int) -> bytes:
    size = struct.pack(">II", len(rows[0]) // CHANNELS[colour], len(rows))
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    parts = ((b"IHDR", size + bytes((8, colour, 0, 0, 0))), (b"IDAT", pixels), (b"IEND", b""))
    return SIGNATURE + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    )


if __name__ == "__main__":
    target = Path("thumbnails")
    jobs = [thumbnail.job(Path(name), target) for name in sys.argv[1:]]
    batch = app.run(app.batch(jobs, then=gallery.job(target)))
    print(len(jobs), "thumbnails are enqueued; the page is job", batch)
