"""Readers of other tools' formats."""
