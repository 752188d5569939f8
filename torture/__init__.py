"""The crash tests at any size: what `./hf torture` runs."""
