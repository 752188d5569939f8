"""BREAK THINGS ON PURPOSE: workers of its own are killed and frozen over real jobs, and judged.

`holdfast chaos` runs it for people, and the project's crash tests run it harder. It ends only
processes that it started, and touches no database that it did not start.
"""
