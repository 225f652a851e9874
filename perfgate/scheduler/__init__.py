"""What a change costs on the host, without a GPU: both arms drive the engine's own scheduler, and what it does is counted."""
