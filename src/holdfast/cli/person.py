"""Who sits at the command line: what timelines say as `by`."""

from __future__ import annotations

import getpass
import os
import socket


def person() -> str:
    """The user and the machine; a user without a name has a number."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"[:200]
