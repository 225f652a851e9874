"""What is known of two working trees' kernels before a window is measured."""
