"""STORE: one file or folder per engine behind the narrow waist of `base`.

Concrete engines never import each other.
"""
