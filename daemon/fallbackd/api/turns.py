"""
`turn`: what was asked of a chain and what has failed so far, as one word that a caller without a
session sends back with its next report.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec

from fallbackd.api.errors import ApiError
from fallbackd.core.turn import Turn
from fallbackd_client.wire.bounds import MAX_TURN


def word_of(turn: Turn | None) -> str | None:
    """Null where there is nothing to continue, or where the chain is too long for a word."""
    if turn is None:
        return None
    word = urlsafe_b64encode(msgspec.json.encode(turn)).decode("ascii")
    return word if len(word) <= MAX_TURN else None


def turn_of(word: str | None) -> Turn | None:
    if word is None:
        return None
    try:
        return msgspec.json.decode(urlsafe_b64decode(word), type=Turn)
    except (ValueError, msgspec.MsgspecError) as error:
        raise ApiError(
            "invalid_params",
            "`turn` is not one of this daemon. Send the `turn` of the answer that named the"
            " candidate, or leave it out.",
            data={"path": "turn"},
        ) from error
