"""A reverse proxy that serves a server below a path of its own, as people put it into a larger
site."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PREFIX = "/tools/jobs"
_OF_CONNECTION = ("connection", "keep-alive", "transfer-encoding")


@contextmanager
def behind_prefix(address: tuple[str, int]) -> Iterator[str]:
    """The URL at which the server's root is found."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            if not self.path.startswith(f"{PREFIX}/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            upstream = http.client.HTTPConnection(*address)
            try:
                path = self.path.removeprefix(PREFIX)
                upstream.request(self.command, path, body or None, dict(self.headers))
                found = upstream.getresponse()
                self.send_response(found.status)
                for name, value in found.getheaders():
                    if name.lower() not in _OF_CONNECTION:
                        self.send_header(name, value)
                self.end_headers()
                # As it comes: a stream has no end.
                while part := found.read1(65_536):
                    self.wfile.write(part)
                    self.wfile.flush()
            except ConnectionError:
                # One side is gone: the other learns it by the end of its connection.
                self.close_connection = True
            finally:
                upstream.close()

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815 (as the base class calls them)

        def log_message(self, format: str, *arguments: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        # Streams may last: their threads do not keep this process.
        proxy.daemon_threads, proxy.block_on_close = True, False
        thread = threading.Thread(target=proxy.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_address[1]}{PREFIX}/"
        finally:
            proxy.shutdown()
            thread.join()
