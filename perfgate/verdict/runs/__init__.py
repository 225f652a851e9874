"""The verdict on loose runs of a load generator: what can be compared, and how."""
