"""Render a verdict for people; nothing here decides anything."""
