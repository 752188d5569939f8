"""The fleet as it runs: event stream, history, metrics, all read from the store."""
