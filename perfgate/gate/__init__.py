"""The gate: load, choose noise, measure, judge; calibrations and the growth of baselines."""
