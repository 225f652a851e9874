"""The layer inside serving engines: plug-in and peers."""
