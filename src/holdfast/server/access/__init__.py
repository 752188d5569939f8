"""Permissions: authentication, namespaces, and an engine restricted to one caller."""
