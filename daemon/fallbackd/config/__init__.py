"""Configuration: a TOML file becomes a `Policy` and one `Options` per backend. Applies nothing."""
