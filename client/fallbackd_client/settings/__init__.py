"""Settings files of other programs, changed in place: shown first, written at once, undoable."""
