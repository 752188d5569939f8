"""One worker: lease jobs, dispatch them to child processes, and settle the leases."""
