"""What the parts of an answer over HTTP are, whatever API it is of."""

import re
from typing import Any

from fallbackd.backends.http_endings import DONE
from fallbackd.backends.lines import count, fields, read_object, words
from fallbackd.classify.error_json import is_error
from fallbackd.core.protocol import Evidence, HttpResponse
from fallbackd.lib.sse import ServerSentEvent

_PAGE = re.compile(r"\s{0,100}<(?:!doctype|html|head|body|title|center|h1|\?xml|!--)", re.I)


def states_error(value: dict[str, Any]) -> bool:
    """A JSON object that says of itself that it is an error."""
    names = (value.get("type"), value.get("object"))
    return bool(value.get("error")) or "error" in names or is_error(value)


def is_readable(event: ServerSentEvent) -> bool:
    """Whether it can be read at all."""
    data = event.data.strip()
    return event.name == "error" or data == DONE or read_object(data) is not None


def is_page(text: str) -> bool:
    """Whether it is a page for browsers."""
    return bool(_PAGE.match(text.removeprefix("\ufeff")))


def redirected(exit: HttpResponse) -> Evidence:
    """A redirect is not followed: it would carry the key to an address that is not configured."""
    place = words(exit.headers.get("location")).partition("?")[0][:300] or "nowhere"
    return Evidence(
        text=f"the server redirects to {place}, which is not followed: "
        "set base_url to the address of the API itself",
        stream="http",
        http_status=exit.status,
        code="redirected",
    )


def numbered(choices: object) -> list[tuple[int, dict[str, Any]]]:
    """The choices or candidates of an answer, each with its index."""
    found = list(map(fields, choices)) if isinstance(choices, list) else []
    return [
        (at if one.get("index") is None else count(one.get("index")), one)
        for at, one in enumerate(found)
    ]


def first_choice(value: dict[str, Any]) -> dict[str, Any]:
    return next((one for _, one in numbered(value.get("choices"))), {})
