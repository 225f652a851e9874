"""What a change makes SGLang choose, without a GPU: both arms resolve models on made-up GPUs, and the answers are compared."""
