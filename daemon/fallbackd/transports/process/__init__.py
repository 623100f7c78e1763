"""Agent CLIs, each watched by a runner of its own."""
