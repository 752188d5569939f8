"""Read, edit and show jobs, one or many at a time."""
