"""One child as its supervisor sees it: instructions after the connection was closed."""

import asyncio

from holdfast.worker.supervisor.child_process import ChildProcess
from holdfast.worker.wire import CancelCall, ChildSetup, FromChild


class NoListener:
    def received(self, process: ChildProcess, answers: list[FromChild]) -> None: ...

    def died(self, process: ChildProcess) -> None: ...


class StrictTransport(asyncio.Transport):
    """Like a socket's transport, it refuses writes after its end."""

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


async def test_nothing_is_sent_after_the_connection_was_closed() -> None:
    child = ChildProcess(ChildSetup(worker="w", worker_id="1", slots=1), NoListener(), False)
    transport = StrictTransport()
    child.connection_made(transport)
    child.write([CancelCall(1, lost=True)])
    child.kill()
    child.write([CancelCall(2, lost=True)])
    assert (len(transport.written), transport.ended) == (1, True)
    child.board.close()
