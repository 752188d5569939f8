"""The built-in task `command`: programs run as processes of their own."""
