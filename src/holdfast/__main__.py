"""`python -m holdfast` runs the command line."""

from holdfast.cli import main

main()
