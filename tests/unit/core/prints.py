"""The fingerprint of a failure that used up its job's attempts."""

from holdfast.core.fingerprint import fingerprint
from holdfast.core.model import Failure, Reason


def print_of(failure: Failure, task: str = "t") -> str:
    return fingerprint(Reason.ATTEMPTS, failure, task)
