"""The packages that are published (`make release`)."""
