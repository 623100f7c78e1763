"""The text of an attempt and its phases, as subscribers receive them while it runs."""

from collections.abc import Callable, Iterator

from msgspec import structs

from fallbackd.core.protocol import AgentText, Observation
from fallbackd.core.watch import Watch
from fallbackd.engine.live import AttemptText, Progress
from fallbackd.lib.secretvalues import SecretValues
from fallbackd_conversations.redact import strip_controls

MAX_PIECE_CHARS = 16_384
"""A longer piece is sent in several."""


class Teller:
    """
    Sends the phase and the text of one attempt.

    Args:
        about: What all of its events say.
        text: Keeps what it writes.
        secrets: Values that are not sent, also where one comes in several pieces.
    """

    def __init__(
        self,
        about: Callable[[], Progress],
        tell: Callable[[Progress], None],
        text: AttemptText,
        secrets: SecretValues,
    ) -> None:
        self._about = about
        self._tell = tell
        self._text = text
        self._secrets = secrets
        self._held = ""
        """The end of what was written, which may be the beginning of a secret."""
        self._phase: str | None = None

    def heard(self, seen: list[Observation], watch: Watch, *, is_past: bool = False) -> None:
        """
        Send the phase and the text of one piece of output.

        Args:
            is_past: It is read again after a restart: its text is kept, and nothing is sent.
        """
        if not is_past and watch.phase is not None and watch.phase != self._phase:
            self._phase = watch.phase
            self._tell(
                structs.replace(
                    self._about(), kind="attempt.phase", phase=strip_controls(watch.phase)
                )
            )
        said = "".join(one.text for one in seen if isinstance(one, AgentText))
        if said:
            said, self._held = f"{self._held}{said}", ""
            begun = self._secrets.begun_at_end(said)
            sure = said[: len(said) - begun]
            self._held = said[len(sure) :]
            self._write(self._shown(sure), is_past=is_past)

    def ended(self, answer: str) -> None:
        """Send what of the answer was not sent while it came: all of it, or its last line."""
        self._let_go()
        shown, told = self._shown(answer), self._text.since(0)
        if self._text.chars == len(told) and shown.startswith(told):
            self._write(shown[len(told) :])

    def close(self) -> None:
        """Nothing follows."""
        self._let_go()
        self._text.is_open = False
        # It leads to the reader of the attempt, and each would keep the other, with the answer.
        del self._about

    def _let_go(self) -> None:
        held, self._held = self._held, ""
        self._write(self._shown(held))

    def _shown(self, text: str) -> str:
        return strip_controls(self._secrets.conceal(text))

    def _write(self, text: str, *, is_past: bool = False) -> None:
        for piece in pieces(text):
            offset = self._text.chars
            self._text.add(piece)
            if not is_past:
                self._tell(self._text.said(piece, offset, at=self._about().at))


def pieces(text: str) -> Iterator[str]:
    """The text, cut into pieces that one event can carry."""
    for start in range(0, len(text), MAX_PIECE_CHARS):
        yield text[start : start + MAX_PIECE_CHARS]
