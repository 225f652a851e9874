"""The words of a verdict: headline, advice, how sure, where, why."""
