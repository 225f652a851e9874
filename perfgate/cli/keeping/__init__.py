"""Commands that keep baselines and history."""
