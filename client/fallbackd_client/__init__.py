"""Talk to a running fallbackd: a blocking client, an async client, a command line."""

__version__ = "0.1.0"
