"""Holdfast with other libraries: one module for each, which imports it."""
