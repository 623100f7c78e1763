"""What a backend printed or answered becomes a `Failure`. Pure."""
