"""A small curl for the commands in the docs, so that the tests need no installed curl."""

from __future__ import annotations

import argparse
import json

import httpx2


def curl(words: list[str], address: str, token: int | None) -> str:
    """Run a curl command and return its output.

    The address in the docs stands for `address`, and TOKEN for the token of the last lease.
    """
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("url")
    parser.add_argument("--json")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-X", dest="method")
    parser.add_argument("-s", "-N", action="store_true")
    options = parser.parse_args(words)
    headers = dict(header.split(": ", 1) for header in options.headers)
    body = None
    if options.json is not None:
        body = options.json.replace("TOKEN", str(token)).encode()
        headers["content-type"] = "application/json"
    method = options.method or ("GET" if body is None else "POST")
    url = options.url.replace("http://127.0.0.1:7433", address)
    return httpx2.request(method, url, content=body, headers=headers, timeout=30).text


def token_in(printed: str) -> int | None:
    """Return the token of the first lease in a response, if there is one."""
    try:
        return int(json.loads(printed)["leases"][0]["token"])
    except (KeyError, IndexError, TypeError, ValueError):
        return None
