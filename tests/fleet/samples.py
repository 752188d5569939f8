"""Messages as other programs send them."""

from typing import Any

INSTANCE = "i-0123456789abcdef0"
JOB = "67890"


def termination(**changes: Any) -> dict[str, Any]:
    """The message of the document, with changes."""
    return {
        "instance_id": INSTANCE,
        "job_id": JOB,
        "status": "success",
        "exit_code": 0,
        "duration_seconds": 123,
        "started_at": "2025-11-25T10:00:00Z",
        "completed_at": "2025-11-25T10:02:03Z",
        **changes,
    }


def housekeeping(task_type: str, **changes: Any) -> dict[str, Any]:
    return {"task_type": task_type, "timestamp": "2025-11-25T10:00:00Z", "params": {}, **changes}
