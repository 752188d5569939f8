"""One logical queue over several stores: the composition `partitioned`."""

from holdfast.engines.partitioned.engine import PartitionedEngine
from holdfast.engines.partitioned.partition import PartitionView

__all__ = ["PartitionView", "PartitionedEngine"]
