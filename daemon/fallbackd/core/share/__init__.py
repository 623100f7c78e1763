"""Health that several machines have in common: records, how they are merged, what is shared."""
