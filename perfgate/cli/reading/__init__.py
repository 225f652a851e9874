"""Commands that read what was measured."""
