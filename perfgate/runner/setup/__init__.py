"""A machine before its first job: accounts, folders, devices, models."""
