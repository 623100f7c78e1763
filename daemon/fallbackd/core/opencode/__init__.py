"""Sessions of opencode servers that others run."""
