"""STORE: one file or folder per engine, all behind the interface in `base`.

Concrete engines never import each other.
"""
