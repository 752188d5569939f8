"""Live data about the fleet: event stream, history and metrics, all read from the store."""
