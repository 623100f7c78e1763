"""Who is used now, with a verdict for each candidate. Pure functions of records and policy."""
