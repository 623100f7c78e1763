"""The law of engine: performs effects, holds what cannot be stored. Decides nothing."""
