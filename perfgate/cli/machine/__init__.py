"""Commands that set up a machine."""
