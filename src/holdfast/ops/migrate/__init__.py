"""Move everything from one store to another: queues, jobs with their history, keys and records.

The source is only closed and drained, never changed otherwise. The target stays closed until it
was compared with the source. A run that is killed is resumed by the next one.
"""
