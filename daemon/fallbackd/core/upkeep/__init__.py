"""Health that moves without an attempt."""
