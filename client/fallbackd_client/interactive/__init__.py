"""For a person who has an agent open: its hook, its status line, and how to continue elsewhere."""
