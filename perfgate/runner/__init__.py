"""What an administrator's machine needs around a measurement: health, locks, admission, caches and a clean floor afterwards."""
