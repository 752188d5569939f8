"""The servers that the examples talk to: one for mail, one for HTTP."""

import contextlib
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class MailServer(socketserver.ThreadingTCPServer):
    """Keeps the mails it gets. `answers` has its next answers to a recipient, the last of which
    stays."""

    daemon_threads = True

    def __init__(self, answers: Mapping[str, list[str]]) -> None:
        super().__init__(("127.0.0.1", 0), _MailSession)
        self.answers = answers
        self.mails: list[Message] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def answer(self, recipient: str) -> str:
        left = self.answers.get(recipient, ["250 ok"])
        return left.pop(0) if len(left) > 1 else left[0]


class _MailSession(socketserver.StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        self.say("220 ready")
        for line in self.rfile:
            word = line[:4].strip().upper().decode()
            if word == "RCPT":
                recipient = line.decode().partition("<")[2].partition(">")[0]
                self.say(self.server.answer(recipient))
            elif word == "DATA":
                self.say("354 go on")
                self.server.mails.append(message_from_bytes(b"".join(iter(self.line, b".\r\n"))))
                self.say("250 ok")
            else:
                self.say("221 bye" if word == "QUIT" else "250 ok")

    def line(self) -> bytes:
        return self.rfile.readline()

    def say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


class Request(NamedTuple):
    path: str
    headers: Mapping[str, str]
    body: bytes


class Answer(NamedTuple):
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}


class HttpServer(ThreadingHTTPServer):
    """Keeps the requests it gets and answers them in a thread each; `most` is the largest number
    of requests that it answered at the same time."""

    def __init__(self, answer: Callable[[Request], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _HttpSession)
        self.answer = answer
        self.requests: list[Request] = []
        self.most = 0
        self.active = 0
        self.guard = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _HttpSession(BaseHTTPRequestHandler):
    server: HttpServer

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = Request(self.path, dict(self.headers), body)
        with self.server.guard:
            self.server.requests.append(request)
            self.server.active += 1
            self.server.most = max(self.server.most, self.server.active)
        answer = self.server.answer(request)
        with self.server.guard:
            self.server.active -= 1
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    do_POST = do_GET  # noqa: N815 (of the library)

    def log_message(self, *_args: object) -> None:
        pass


@contextlib.contextmanager
def serving(*servers: socketserver.BaseServer) -> Iterator[None]:
    """Servers that answer in threads of their own."""
    threads = [threading.Thread(target=each.serve_forever, args=(0.01,)) for each in servers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
