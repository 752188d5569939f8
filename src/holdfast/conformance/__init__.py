"""For authors of engines: the contract suite, the checker of recorded histories, simulation, faults
and chaos. Nothing in the product imports it except `holdfast chaos`."""
