"""The law of app: knows everything, decides nothing."""
