"""What agents remember: working buffers, facts, relations and episodes, and their retrieval. May use `runs` and below."""
