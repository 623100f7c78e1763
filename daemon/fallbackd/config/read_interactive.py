"""`[interactive]`: agents that a person has open."""

from msgspec import Struct

from fallbackd.config.fields import Say, read
from fallbackd.config.schema import InteractiveTable


class Interactive(Struct, frozen=True, kw_only=True):
    watch: tuple[str, ...] = ()


def read_interactive(raw: object, say: Say) -> Interactive:
    plain = Interactive()
    return Interactive(
        **read(raw, InteractiveTable, "interactive", say, in_use=lambda one: getattr(plain, one))
    )
