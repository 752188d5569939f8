"""TELL: what `--json` prints and what the server answers, typed. A field that is here stays here.

Facts go in as the engine has them, and come out as people read them: instants in RFC 3339, JSON
as what it says. Nothing here reads a store.
"""
