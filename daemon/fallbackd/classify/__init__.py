"""Turns the output of a backend into a `Failure`. Pure."""
