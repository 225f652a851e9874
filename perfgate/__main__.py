"""`python -m perfgate` is the `perfgate` command."""

from perfgate.cli import run

run()
