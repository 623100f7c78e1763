"""The command line. Each command is a module, and only the chosen one is loaded."""
