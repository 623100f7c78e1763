"""Entries of this server in the settings of agents: shown first, and taken out again on demand."""
