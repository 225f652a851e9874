"""Records and results of a matrix."""
