"""`[[signatures]]`: lines of output that the user knows to mean a failure."""

from msgspec import Struct

from fallbackd.backends import ALIASES, JUDGED, KIND_NAMES
from fallbackd.backends.signatures import LATER
from fallbackd.classify.rules import Rule, linear
from fallbackd.config.fields import Say, guess, join, read, show
from fallbackd.config.schema import SignatureTable
from fallbackd.core.failures import Reason

_ANYWHERE = ("stderr", "jsonl", "http", "unknown")


class Signature(Struct, frozen=True, kw_only=True):
    rule: Rule
    kind: str | None = None
    """None: of every kind."""


def read_signatures(raw: object, say: Say) -> tuple[Signature, ...]:
    if not isinstance(raw, list):
        say("signatures", f"{show(raw)}: must be written as [[signatures]]; it is left out.")
        return ()
    found: dict[str, Signature] = {}
    for number, value in enumerate(raw):
        path = join("signatures", number)
        one = _signature(value, number, path, say)
        if one is None:
            continue
        if one.rule.id in found:
            say(path, f"the id {show(one.rule.id)} is taken; it is left out.")
            continue
        found[one.rule.id] = one
    return tuple(found.values())


def _signature(raw: object, number: int, path: str, say: Say) -> Signature | None:
    given = read(raw, SignatureTable, path, say)
    if not isinstance(raw, dict):
        return None
    for key in ("pattern", "reason"):
        if key not in given:
            if key not in raw:
                say(path, f"has no {key}; the signature is left out.")
            return None
    pattern: str = given["pattern"]
    reason: Reason = given["reason"]
    if why := _trouble(pattern):
        say(join(path, "pattern"), f"{show(pattern)}: {why}; the signature is left out.")
        return None
    kind = given.get("kind")
    if kind is not None:
        kind = ALIASES.get(kind, kind)
        if kind not in (*KIND_NAMES, *LATER, *JUDGED):
            near = guess(kind, (*KIND_NAMES, *JUDGED))
            say(join(path, "kind"), f"{show(kind)} is no kind; the signature is left out.{near}")
            return None
    stream = given.get("stream")
    rule = Rule(
        id=given.get("id", f"signature-{number}"),
        reason=reason,
        pattern=pattern,
        # A tail of mixed output holds every channel.
        streams=_ANYWHERE if stream is None else tuple(dict.fromkeys((stream, "unknown"))),
        anywhere=True,
        yields=given.get("yields", False),
        is_users=True,
        detail=given.get("detail"),
    )
    return Signature(rule=rule, kind=kind)


def _trouble(pattern: str) -> str | None:
    """Why a pattern cannot be used, if so."""
    try:
        compiled = linear(pattern)
    except ValueError as error:
        return f"is no regular expression that linear time can search ({error})"
    return "fits every line" if compiled.search("") is not None else None
