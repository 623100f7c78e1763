"""The law of ports: Protocols only. No code that runs."""
