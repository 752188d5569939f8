"""The terminal: colour, paging, single keys, and completion by the shell."""
