"""Judge whether a change made LLM serving slower, and say how sure the answer is."""

__version__ = "0.1.0"
