"""The effects at the rim: models, servers, load generators and the sessions that drive them."""
