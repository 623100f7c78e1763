"""Sessions of running opencode servers: watched, rescued, redirected."""
