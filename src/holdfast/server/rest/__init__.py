"""The REST API: one module for each resource, and the verbs of the remote engine."""
