"""What perfgate knows of serving engines, as data: one file an engine, one table of all. A room may read it; it reads none."""
