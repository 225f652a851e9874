"""Runs in an arm's environment and imports nothing of perfgate: the engine's host parts, driven in one thread and metered."""
