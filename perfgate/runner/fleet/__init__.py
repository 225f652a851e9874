"""What several people and repositories share: who used a GPU for how long, and how much each may."""
