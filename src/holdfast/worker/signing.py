"""Secrets of webhooks and what they sign. A secret stays in its file and in the child that signs:
it is in no job, no record, no log and no error."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import ConfigError

_SECRET_MIN = 16
_SECRETS_MAX = 8


class Secrets:
    """One a line, the newest first; empty lines and those with # do not count. Read again when
    the file has changed, so that they can be renewed while the worker runs."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._stamp: tuple[int, int, int] | None = None
        self._secrets: tuple[bytes, ...] = ()

    def read(self) -> tuple[bytes, ...]:
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if stamp != self._stamp:
                self._secrets, self._stamp = parse(self._path.read_bytes(), self._path), stamp
        except OSError as error:
            if not self._secrets:
                raise ConfigError(
                    f"the secrets of webhooks cannot be read from {self._path}: {error.strerror}"
                ) from None
        return self._secrets


def parse(text: bytes, path: Path) -> tuple[bytes, ...]:
    lines = [line.strip() for line in text.splitlines()]
    secrets = tuple(line for line in lines if line and not line.startswith(b"#"))
    if not 1 <= len(secrets) <= _SECRETS_MAX:
        raise ConfigError(
            f"{path} has {len(secrets)} secrets: give 1 to {_SECRETS_MAX}, one a line"
        )
    if any(len(secret) < _SECRET_MIN for secret in secrets):
        raise ConfigError(
            f"a secret in {path} is shorter than {_SECRET_MIN} characters: make one with"
            " `openssl rand -hex 32`"
        )
    return secrets


def signature(secrets: Sequence[bytes], timestamp: int, body: bytes) -> str:
    """`t=1700000000,v1=…` with one v1 for each secret, so that receivers know either."""
    signed = str(timestamp).encode() + b"." + body
    made = [hmac.new(secret, signed, hashlib.sha256).hexdigest() for secret in secrets]
    return ",".join([f"t={timestamp}", *(f"v1={each}" for each in made)])
