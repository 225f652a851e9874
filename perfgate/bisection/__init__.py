"""Effects of a search for the commit that made it slower: git, builds, measurements and the journal on disk."""
