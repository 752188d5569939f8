"""curl as the docs use it, so that what they show runs where no curl is."""

from __future__ import annotations

import argparse
import json

import httpx2


def curl(words: list[str], address: str, token: int | None) -> str:
    """What it prints. The address in the docs is for this one, TOKEN for the last lease's."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("url")
    parser.add_argument("--json")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-X", dest="method")
    parser.add_argument("-s", "-N", action="store_true")
    given = parser.parse_args(words)
    headers = dict(header.split(": ", 1) for header in given.headers)
    body = None
    if given.json is not None:
        body = given.json.replace("TOKEN", str(token)).encode()
        headers["content-type"] = "application/json"
    method = given.method or ("GET" if body is None else "POST")
    url = given.url.replace("http://127.0.0.1:7433", address)
    return httpx2.request(method, url, content=body, headers=headers, timeout=30).text


def token_in(printed: str) -> int | None:
    """Of the lease that it shows, if it shows one."""
    try:
        return int(json.loads(printed)["leases"][0]["token"])
    except (KeyError, IndexError, TypeError, ValueError):
        return None
