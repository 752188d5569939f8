"""Crash tests of any size, run by `./hf torture`."""
