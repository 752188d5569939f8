"""Certificates for tests."""

import subprocess
from pathlib import Path


def self_signed(folder: Path, name: str, *, signer: str | None = None) -> tuple[Path, Path]:
    """A certificate for localhost and 127.0.0.1 and its key, by the system's own tool; signed by
    itself, or by another of the folder."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    line = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    line += ["-nodes", "-days", "2", "-subj", f"/CN={name}", "-out", str(certificate)]
    line += ["-keyout", str(key), "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    if signer is not None:
        line += ["-CA", str(folder / f"{signer}.pem"), "-CAkey", str(folder / f"{signer}.key")]
        line += ["-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run(line, check=True, capture_output=True)
    return certificate, key
