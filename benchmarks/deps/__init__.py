"""Whether `perfgate deps` names the slow package among those that were bumped."""
