"""Engines: how a server of an arm is installed, started, checked and stopped."""
