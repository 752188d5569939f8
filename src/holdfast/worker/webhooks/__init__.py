"""The built-in task `webhook`: signed HTTP requests to public addresses."""
