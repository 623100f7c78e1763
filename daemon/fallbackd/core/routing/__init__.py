"""Choice of the candidate to use now, with all verdicts. Pure functions of records and policy."""
