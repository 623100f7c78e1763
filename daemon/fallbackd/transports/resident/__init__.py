"""Agent CLIs that stay after a prompt, and take the next one."""
