"""Whether the evidence may be judged at all."""
