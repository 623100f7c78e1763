"""Opencode servers: ours, and those that others run."""
