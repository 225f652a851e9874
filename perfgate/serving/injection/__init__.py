"""Slow-downs of known size, put into a served model."""
