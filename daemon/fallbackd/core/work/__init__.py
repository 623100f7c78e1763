"""The life of a delegation: admitted, running, ended, answered."""
