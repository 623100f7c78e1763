"""Setting fallbackd up for its user: every step is a change that is shown before it is made."""
