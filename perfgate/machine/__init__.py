"""The machine: its fingerprint, accelerators, GPUs and processes."""
