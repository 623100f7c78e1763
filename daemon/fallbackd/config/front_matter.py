"""The front matter of a Markdown file, as data."""

from typing import Any

FENCE = "---"
MAX_CHARS = 64 * 1024


class NotPlain(Exception):
    """What cannot be read, with the number of its line."""


def split(text: str) -> str | None:
    """The front matter of a Markdown text; None where it has none."""
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].strip() != FENCE:
        return None
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() in (FENCE, "..."):
            return "\n".join(lines[1:number])
    return None


def parse(text: str) -> Any:
    """
    The value of a YAML text.

    Raises:
        NotPlain: It is none, it is too long, or has tags or aliases: a description of an agent
            needs none, and a few aliases may stand for gigabytes.
    """
    import yaml  # 20 ms, for those who have such files

    if len(text) > MAX_CHARS:
        raise NotPlain(f"is longer than {MAX_CHARS} characters")
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
                mark = event.start_mark
                line = "" if mark is None else f"line {mark.line + 1}: "
                raise NotPlain(f"{line}has a tag or an alias")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        raise NotPlain(f"{where}is no YAML") from None
    except (RecursionError, ValueError) as error:
        raise NotPlain("is no YAML that can be read") from error
