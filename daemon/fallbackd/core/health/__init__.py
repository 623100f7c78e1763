"""How it stands with one scope: the machine, and which scopes there are."""
