"""The daemon: decides, supervises and fails over. `ARCHITECTURE.md` has the map."""
