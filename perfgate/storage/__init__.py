"""Files on disk: atomic writes, locks, journals, rounding, and where state is kept."""
