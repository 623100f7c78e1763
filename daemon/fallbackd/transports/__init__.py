"""Ways out of the daemon: each turns the world into a result value."""
