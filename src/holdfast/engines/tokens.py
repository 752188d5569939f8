"""What fences a lease: numbers that only grow, with random low bits.

The number makes a later lease's token greater, for stores outside that compare. The random bits
keep a token from repeating when a store loses its last commits and counts them again. Both fit
in 53 bits for the first 137 billion leases, so every JSON reader keeps them exact.
"""

from __future__ import annotations

import secrets

RANDOM_BITS = 16


def make_token(number: int) -> int:
    """`number` must be greater than for every earlier lease of the same job."""
    return number << RANDOM_BITS | secrets.randbits(RANDOM_BITS)
