"""Times, rooflines and tuning of layers."""
