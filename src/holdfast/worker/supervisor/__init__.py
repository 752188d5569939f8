"""One worker: lease jobs, dispatch them to child processes, settle how they ended."""
