"""One logical queue over several stores: the composition `partitioned`."""

from holdfast.engines.extras import PartitionView
from holdfast.engines.partitioned.engine import PartitionedEngine

__all__ = ["PartitionView", "PartitionedEngine"]
