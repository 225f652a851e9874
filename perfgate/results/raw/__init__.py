"""Raw files of a session, each by itself or all in one pack."""
