"""Flow control on SQLite: groups, limits, fairness, dependencies, and the lanes they need."""
