"""ALERT: evaluate rules over the store, raise and end alerts once for all servers, and notify.

No job depends on it. Facts come from the store, so that workers attached directly to it count too.
"""
