"""The daemon: decides, supervises and fails over. `ARCHITECTURE.md` has the map."""

__version__ = "0.1.0"
