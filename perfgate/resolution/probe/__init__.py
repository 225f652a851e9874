"""What runs inside an arm's environment: the engine's own code, on a device that is not there. Imports nothing of perfgate."""
