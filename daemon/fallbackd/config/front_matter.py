"""The front matter of a Markdown file: plain data, written as YAML."""

from typing import Any

FENCE = "---"
MAX_CHARS = 64 * 1024


class NotPlain(Exception):
    """It cannot be read, or asks for more than data."""


def split(text: str) -> str | None:
    """The front matter of a Markdown text; None where it has none."""
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].strip() != FENCE:
        return None
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() in (FENCE, "..."):
            return "\n".join(lines[1:number])
    return None


def parse(text: str) -> Any:  # any JSON, and dates
    """
    Raises:
        NotPlain: It is no YAML, or has tags of other programs, which may ask for code.
    """
    import yaml  # 20 ms, for those who have such files

    if len(text) > MAX_CHARS:
        raise NotPlain(f"is longer than {MAX_CHARS} characters")
    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f"line {mark.line + 1}: "
        raise NotPlain(f"{where}{error.problem or 'is no YAML'}") from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise NotPlain("is no YAML") from None
