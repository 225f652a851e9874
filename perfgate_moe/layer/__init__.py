"""The fused MoE layer, its reference and its tables."""
