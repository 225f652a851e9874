"""What people ask for on a pull request, and what they accept there."""
