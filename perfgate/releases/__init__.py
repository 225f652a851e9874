"""Releases of an engine as they come out: what each can do here, and how fast each is against the one before."""
