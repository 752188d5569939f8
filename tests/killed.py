"""The death of a process, for engines that end it in the middle of a call."""


class Killed(BaseException):
    """The process is gone: nothing may catch this, and nothing that follows is done."""
