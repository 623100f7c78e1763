"""Embeddings: vectors of a text, in the words of OpenAI's and of Google's API."""

from typing import Any

from fallbackd.backends.http_answers import HttpParser
from fallbackd.backends.lines import cost, count, fields
from fallbackd.core.protocol import Observation, Usage

EMBEDS = frozenset({"embeddings", "embedContent", "batchEmbedContents"})
"""The actions that ask for them, by `passage.Passage.side`."""


def same_vectors(one: str, other: str) -> bool:
    """
    Whether two names are of one model, whose vectors can be compared. A vendor in front of the name
    says nothing, and what follows it may be another edition.
    """
    return _plain(one) == _plain(other)


def _plain(model: str) -> str:
    return model.lower().rpartition("/")[2].removesuffix(":latest")


class EmbeddingsParser(HttpParser):
    """The numbers, or their bytes in base64, are not read: they have to be there."""

    def read_event(self, name: str, event: dict[str, Any]) -> list[Observation]:
        return []

    def read_whole(self, value: dict[str, Any]) -> None:
        found = value.get("data", value.get("embeddings"))
        items = [value] if "embedding" in value else found
        if not isinstance(items, list):
            return
        self.answered = self.has_ended = True
        self.has_other = bool(items) and all(_has_vector(fields(one)) for one in items)
        used = fields(value.get("usage"))
        google = fields(value.get("usageMetadata"))
        tokens = count(used.get("prompt_tokens")) or count(used.get("total_tokens"))
        self.usage = Usage(
            input_tokens=tokens or count(google.get("promptTokenCount")),
            cost_usd=cost(used),
        )


def _has_vector(item: dict[str, Any]) -> bool:
    found = item.get("embedding", item.get("values"))
    return bool(found.get("values") if isinstance(found, dict) else found)
