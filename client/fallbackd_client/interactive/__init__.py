"""The hook and status line of an agent that a person has open, and how to continue elsewhere."""
