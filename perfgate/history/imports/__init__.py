"""Numbers that a team already has: outputs of load generators and of other tools, as sessions of the store."""
