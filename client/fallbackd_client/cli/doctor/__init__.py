"""Problems around a daemon, found from outside: each finding with the command to fix it."""
