"""Commands that workflows call."""
