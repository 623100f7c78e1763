"""Programs that ask the gateway: their settings, and whether their calls arrive."""
