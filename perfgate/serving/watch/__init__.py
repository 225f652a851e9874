"""What is read of the machine and the server while a window runs."""
