"""The result folder: written, resumed and loaded as values."""
