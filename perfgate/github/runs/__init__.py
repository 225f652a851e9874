"""Runs of the workflows: whose they are, what their jobs left, and which of them is ended or run again."""
