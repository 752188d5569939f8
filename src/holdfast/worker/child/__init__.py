"""The processes that run handlers. They know no engine and no lease, only calls by number."""
