"""Conformance: cases, oracle limits, implementations and mutants."""
