"""The process of one supervisor: `python -m holdfast.worker.supervisor [--template]`.

With --template it starts the template process first. Both then load their modules at the same time,
while the command line that started them is still reading its flags.
"""

from __future__ import annotations

import os
import sys

from holdfast.worker.managed_process import TEMPLATE_FLAG
from holdfast.worker.supervisor.template_process import TemplateProcess


def main() -> None:
    """Entry point of the process."""
    worker_id = os.urandom(16).hex()
    template = TemplateProcess(worker_id) if TEMPLATE_FLAG in sys.argv[1:] else None
    # Only now: this takes most of the time of a start.
    from holdfast.worker.supervisor.main import run

    run(worker_id, template)


if __name__ == "__main__":
    main()
