"""One child as its supervisor sees it: what is said to one that was hung up on."""

import asyncio

from holdfast.worker.link import Link
from holdfast.worker.wire import Cancel, ChildSetup, Up


class Nobody:
    def heard(self, link: Link, words: list[Up]) -> None: ...

    def died(self, link: Link) -> None: ...


class Line(asyncio.Transport):
    """As strict as a socket's: nothing can be written after its end."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.ended:
            raise RuntimeError("Cannot call write() after write_eof()")
        self.written.append(bytes(data))

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return False


async def test_what_is_said_after_hanging_up_is_left_unsaid() -> None:
    link = Link(ChildSetup(worker="w", worker_id="1", slots=1), Nobody(), False)
    line = Line()
    link.connection_made(line)
    link.say([Cancel(1, lost=True)])
    link.kill()
    link.say([Cancel(2, lost=True)])
    assert (len(line.written), line.ended) == (1, True)
    link.board.close()
