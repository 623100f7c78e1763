"""What subscribers receive of an attempt while it runs: its phase, and its agent's text."""

from collections.abc import Callable, Iterator

from msgspec import structs

from fallbackd.core.protocol import AgentText, Observation
from fallbackd.core.watch import Watch
from fallbackd.engine.live import Progress
from fallbackd_conversations.redact import strip_controls

MAX_PIECE_CHARS = 16_384
"""A longer piece is sent in several."""
MAX_KEPT_CHARS = 1_000_000


class Teller:
    """
    Of one attempt.

    Args:
        about: What all of its events say.
        conceal: Masks known secrets.
    """

    def __init__(
        self,
        about: Callable[[], Progress],
        tell: Callable[[Progress], None],
        conceal: Callable[[str], str],
    ) -> None:
        self._about = about
        self._tell = tell
        self._conceal = conceal
        self._phase: str | None = None
        self._told: list[str] = []
        """The beginning of what was sent: all of it, unless it is very long."""
        self._told_chars = 0

    def heard(self, seen: list[Observation], watch: Watch) -> None:
        """Send the phase and the text of one piece of output."""
        if watch.phase is not None and watch.phase != self._phase:
            self._phase = watch.phase
            self._tell(
                structs.replace(
                    self._about(), kind="attempt.phase", phase=strip_controls(watch.phase)
                )
            )
        said = "".join(one.text for one in seen if isinstance(one, AgentText))
        if said:
            self._tell_text(self._shown(said))

    def ended(self, answer: str) -> None:
        """Send what of the answer was not sent while it came: all of it, or its last line."""
        shown, told = self._shown(answer), "".join(self._told)
        if self._told_chars == len(told) and shown.startswith(told):
            self._tell_text(shown[len(told) :])

    def _shown(self, text: str) -> str:
        return strip_controls(self._conceal(text))

    def _tell_text(self, text: str) -> None:
        if self._told_chars < MAX_KEPT_CHARS:
            self._told.append(text)
        for piece in _pieces(text):
            offset, self._told_chars = self._told_chars, self._told_chars + len(piece)
            self._tell(
                structs.replace(self._about(), kind="attempt.text", text=piece, offset=offset)
            )


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), MAX_PIECE_CHARS):
        yield text[start : start + MAX_PIECE_CHARS]
