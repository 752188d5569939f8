"""One program per queue, with the same roles: see `program.py`."""
