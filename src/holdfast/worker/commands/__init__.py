"""The built-in task `command`: runs programs in separate processes."""
