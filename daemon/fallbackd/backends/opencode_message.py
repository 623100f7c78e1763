"""A message of opencode, as its events have described it so far."""

from msgspec import Struct, field

from fallbackd.core.protocol import Usage
from fallbackd.lib import loose

MessageFields = loose.Fields


class MessagePart(Struct, kw_only=True):
    kind: str
    text: str = ""
    synthetic: bool = False


class ServedMessage(Struct, kw_only=True):
    role: str = ""
    summary: bool = False
    """Written by the compaction, not for the caller."""
    finish: str | None = None
    completed: bool = False
    usage: Usage = Usage()
    parts: dict[str, MessagePart] = field(default_factory=dict)

    def take_info(self, info: MessageFields) -> None:
        self.role = loose.text(info.get("role")) or self.role
        # A user message carries an object here: what it changed.
        self.summary = info.get("summary") is True or info.get("mode") == "compaction"
        self.finish = loose.text(info.get("finish")) or self.finish
        self.completed = self.completed or "completed" in loose.fields(info.get("time"))

    def take_part(self, part: MessageFields, *, key: str) -> None:
        kind = loose.text(part.get("type"))
        if kind == "step-finish" and self.finish is None:
            self.finish = loose.text(part.get("reason")) or None
        synthetic = part.get("synthetic") is True or part.get("ignored") is True
        self.parts[key] = MessagePart(
            kind=kind, text=loose.text(part.get("text")), synthetic=synthetic
        )

    def answer(self) -> str:
        """Texts behind the last `step-start`: what stands before is of an earlier try."""
        texts: list[str] = []
        for part in self.parts.values():
            if part.kind == "step-start":
                texts.clear()
            elif part.kind == "text" and not part.synthetic and part.text.strip():
                texts.append(part.text.strip("\n"))
        return "\n\n".join(texts)


def message_usage(info: MessageFields) -> Usage:
    tokens = loose.fields(info.get("tokens"))
    cache = loose.fields(tokens.get("cache"))
    cost = info.get("cost")
    return Usage(
        input_tokens=loose.count(tokens.get("input"))
        + loose.count(cache.get("read"))
        + loose.count(cache.get("write")),
        output_tokens=loose.count(tokens.get("output")) + loose.count(tokens.get("reasoning")),
        cost_usd=float(cost) if isinstance(cost, int | float) and cost > 0 else None,
    )
