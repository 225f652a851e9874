"""The mathematics of the verdict: small pure functions, each with its source."""
