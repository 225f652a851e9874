"""What a change makes SGLang choose, without a GPU: both arms resolve models on GPUs that are made up, and the answers are compared."""
