"""What a job prints, bounded: its first bytes and its last ones are kept, the middle is counted."""

from __future__ import annotations

_NOTE_BYTES = 64


class Output:
    """Memory stays below twice `most`, however much is written."""

    __slots__ = ("_half", "_head", "_tail", "size")

    def __init__(self, most: int) -> None:
        self.size = 0
        """Bytes written in all."""
        self._half = max(0, (most - _NOTE_BYTES) // 2)
        self._head = bytearray()
        self._tail = bytearray()

    def write(self, data: bytes) -> None:
        self.size += len(data)
        half = self._half
        room = half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if len(data) >= half:
            self._tail[:] = data[len(data) - half :]
        elif data:
            self._tail += data
            # Trimmed only now and then, so that many small writes cost no more than few large ones.
            if len(self._tail) > 2 * half:
                del self._tail[:-half]

    def value(self) -> bytes:
        """All of it, or both ends with a line between that says how much is not there."""
        tail = self._tail[-self._half :] if self._half else b""
        left_out = self.size - len(self._head) - len(tail)
        if not left_out:
            return bytes(self._head + tail)
        return b"".join((self._head, b"\n... %d bytes left out ...\n" % left_out, tail))

    def last_line(self, most: int = 200) -> str:
        """The last line that is not blank, as text."""
        whole = self.size == len(self._head) + len(self._tail)
        end = bytes(self._head + self._tail if whole else self._tail)[-4096:].rstrip()
        line = end[end.rfind(b"\n") + 1 :].decode(errors="replace").strip()
        return line if len(line) <= most else line[: most - 1] + "…"
