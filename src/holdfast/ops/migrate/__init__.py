"""Move everything from one store to another: queues, jobs with their history, keys and records.

The source is only closed and drained, not changed otherwise. The target stays closed until it has
been compared with the source. The next run resumes one that was killed.
"""
