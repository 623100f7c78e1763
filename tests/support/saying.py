"""Figures that tests measure, for the summary of the run: also of tests in worker processes."""

SAID: list[str] = []


def say(text: str) -> None:
    SAID.extend(text.strip("\n").splitlines())
