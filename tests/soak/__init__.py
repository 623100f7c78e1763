"""What takes minutes: `make soak`, or `python -m tests.soak kills`."""
