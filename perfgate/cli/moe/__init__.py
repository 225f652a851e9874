"""Commands of the MoE kernels."""
