"""GitHub at the rim: what a GPU job hands over, and the only code that may hold a token."""
