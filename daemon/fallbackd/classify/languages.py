"""
Puts messages in other languages into the English words that rules and model know.

The words are a file of the package: an English phrase, and below it, for each language, how words
begin that mean the same (`$`: and where they end). The longest that fits at a place counts. Words
of a time, which say nothing of a failure, stand below `=` and their English.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from unicodedata import normalize

from msgspec import Struct

from fallbackd.classify.rules import Screen

MAX_CHARS = 4_000
_LONG_CHARS = 5
"""
Letters of a part that may stand inside of a word (`Netzwerkverbindung`); a shorter one begins it.
"""
_ENGLISH = re.compile(
    r"\b(?:the|your|you|to|are|with|from|this|not|has|been|please|for|failed|cannot)\b"
)
_FOREIGN = re.compile(r"[\u00df-\u00f6\u00f8-\u024f\u0400-\u1fff\u3040-\ud7af]")
_ACCENTS = re.compile(r"[\u0300-\u036f]")


class _Stem(Struct, frozen=True):
    word: str
    english: str
    is_whole: bool = False

    def places_in(self, text: str) -> Iterator[int]:
        at = text.find(self.word)
        while at >= 0:
            if self._may_stand(at, text):
                yield at
            at = text.find(self.word, at + 1)

    def _may_stand(self, at: int, text: str) -> bool:
        end = at + len(self.word)
        if self.is_whole and text[end : end + 1].isalpha():
            return False
        # A script without capitals divides no words, or joins some of them.
        may_join = len(self.word) >= _LONG_CHARS or self.word[0] == self.word[0].upper()
        return may_join or at == 0 or not text[at - 1].isalpha()


@lru_cache(maxsize=32)
def in_english(text: str) -> tuple[str, ...]:
    """The phrases in the order in which they are said; none: English, or no language known."""
    low = text[-MAX_CHARS:].lower()
    if _ENGLISH.search(low) and not _FOREIGN.search(low):
        return ()
    return tuple(dict.fromkeys(english for _, english in phrases_in(plain(low))))


def phrases_in(plain_text: str) -> Iterator[tuple[int, str]]:
    """Positions and meanings of the phrases in a text that `plain` has made."""
    known, screen = stems()
    found = [
        (at, -len(stem.word), stem.english)
        for name in screen.may_find(plain_text)
        for stem in known[name]
        for at in stem.places_in(plain_text)
    ]
    end = 0
    for at, length, english in sorted(found):
        if at >= end:
            yield at, english
            end = at - length


def plain(text: str) -> str:
    """Return the text in lower case and without accents, which many consoles leave out."""
    text = text.lower()
    if text.isascii():
        return text
    return normalize("NFC", _ACCENTS.sub("", normalize("NFKD", text.replace("’", "'"))))


@lru_cache(maxsize=1)
def stems() -> tuple[Mapping[str, list[_Stem]], Screen]:
    """Stems by the pattern that finds them."""
    found: dict[str, list[_Stem]] = {}
    for english, words in _sections().items():
        for word in words if not english.startswith("=") else ():
            stem = _Stem(word.removesuffix("$"), english, word.endswith("$"))
            found.setdefault(re.escape(stem.word), []).append(stem)
    return found, Screen(found)


def words_of(english: str) -> str:
    """Return alternatives of a pattern, the longest first, for text that is `plain`."""
    return "|".join(sorted(map(re.escape, _sections()[f"={english}"]), key=lambda one: -len(one)))


@lru_cache(maxsize=1)
def _sections() -> Mapping[str, list[str]]:
    from pkgutil import get_data  # slow to load

    found: dict[str, list[str]] = {}
    words: list[str] = []
    for line in (get_data("fallbackd.classify", "languages.txt") or b"").decode().splitlines():
        if line.startswith(" "):
            words += map(plain, line[4:].split("|"))
        else:
            words = found.setdefault(line, [])
    return found
