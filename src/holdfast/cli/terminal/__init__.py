"""The terminal: colour, paging, and completion by the shell."""
