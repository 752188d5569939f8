"""SERVE: an application over HTTP, as REST for any language and as verbs for the remote engine.

No module here decides about jobs or knows an engine by name.
"""
