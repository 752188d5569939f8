"""Flow control in PostgreSQL: lanes, limits, fairness, groups and dependencies."""
