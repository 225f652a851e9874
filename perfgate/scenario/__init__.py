"""What is to be measured: the scenario file, its load, safeguards and matrix."""
