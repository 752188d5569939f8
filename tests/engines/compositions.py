"""The themes of the contract in which the parts of a composition meet.

Where each part passes the whole contract by itself, a default run tests these of the composition.
All of them: HOLDFAST_CONTRACT=whole ./hf test -k Whole
"""

import os

from holdfast.conformance.contract import DurableContract, SharedContract, TwinContract
from holdfast.conformance.contract.concurrency import ConcurrencyContract
from holdfast.conformance.contract.dependencies import DependencyContract
from holdfast.conformance.contract.groups import GroupContract
from holdfast.conformance.contract.settle import FenceContract

WHOLE = os.environ.get("HOLDFAST_CONTRACT") == "whole"


class CompositionContract(
    TwinContract,
    FenceContract,
    ConcurrencyContract,
    GroupContract,
    DependencyContract,
    DurableContract,
    SharedContract,
):
    """Where jobs go, who may settle them, and what happens at the same time."""
