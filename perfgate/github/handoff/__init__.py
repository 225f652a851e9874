"""A session on its way from an untrusted job to one that may comment."""
