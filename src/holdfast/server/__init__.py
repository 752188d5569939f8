"""SERVE: an application over HTTP. REST for any language, and the verbs of the remote engine.

Nothing here decides about jobs, and no engine is known by its name.
"""
