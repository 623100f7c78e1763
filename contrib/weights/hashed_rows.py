"""
Rows for training, without the texts: buckets of features, the label, the group.

A file of rows is made once from labelled messages (`make weights LABELLED="FILE …"`, one JSON
object per line with `text`, `reason`, `also_ok`, `thread` and what is known beside) and handed on
instead of them. A bucket of 2^18 stands for many n-grams, and those that occur in one
row only are left out.
"""

import hashlib
import lzma
import re
import struct
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from fallbackd.backends import SIGNATURES
from fallbackd.classify.classifier import rule_of
from fallbackd.classify.features import PARTS, Features, Manner, features_of, manner_of
from fallbackd.core.protocol import Evidence

ROWS = Path(__file__).parent / "rows.xz"

API_KINDS = {
    "openai-api": "openai-http",
    "codex-legacy": "codex",
    "anthropic-api": "anthropic-http",
    "google-api": "google-http",
    "bedrock": "bedrock-http",
    "azure-openai": "azure-http",
    "openrouter": "openrouter-http",
    "ollama": "ollama-http",
}


class Label(Struct, frozen=True, kw_only=True):
    reason: str
    also_ok: list[str] = []
    group: str = ""
    """Rows of one group are never on both sides of a split."""
    platform: str = "generic"
    tool: str = "generic"
    """The program that printed it, where that is known better than its platform."""
    lang: str = "en"
    kind: str = "real"
    """test and docs weigh less than real."""
    http_status: int | None = None
    rule: str | None = None
    """The reason that the rules give, without an exit status."""
    trust: str | None = None
    """What that rests on: structured or text."""
    manner: Manner = "transcript"


class Row(Struct, frozen=True):
    label: Label
    features: Features


def kind_of(item: dict[str, Any]) -> str:
    platform = str(item.get("platform") or "generic")
    kind = API_KINDS.get(platform, platform)
    return kind if kind in SIGNATURES else "generic"


def label_of(item: dict[str, Any]) -> Label:
    platform = str(item.get("platform") or "generic")
    thread, source = str(item.get("thread", item["text"])), str(item.get("source", ""))
    ran = _RAN.match(source)
    return Label(
        reason=item["reason"],
        also_ok=item.get("also_ok") or [],
        group=hashlib.sha256(thread.encode()).hexdigest()[:12],
        platform=platform,
        tool=platform if ran is None else ran[1],
        lang=item.get("lang") or "en",
        kind=item.get("kind") or "real",
        http_status=item.get("http_status"),
        manner=manner_of(item["text"]),
    )


_RAN = re.compile(r"run: ([^\s\d][^\s]*)")


def row_of(item: dict[str, Any]) -> Row:
    text, status, kind = item["text"], item.get("http_status"), kind_of(item)
    evidence = Evidence(
        text=text, http_status=status, headers=item.get("headers") or {}, stream="unknown"
    )
    hit = rule_of(evidence, SIGNATURES[kind])
    label = label_of(item)
    if hit is not None:
        label = structs.replace(label, rule=hit.rule.reason.value, trust=hit.confidence)
    features = features_of(text, status, kind)
    return Row(label, Features(*(tuple(sorted(getattr(features, part))) for part in PARTS)))


def write_rows(rows: list[Row], path: Path) -> None:
    out = bytearray()
    for part in PARTS:
        count = Counter(b for row in rows for b in getattr(row.features, part))
        kept = sorted((b for b in count if count[b] > 1), key=lambda b: (-count[b], b))
        rank = {bucket: at for at, bucket in enumerate(kept)}
        out += struct.pack("<I", len(kept)) + struct.pack(f"<{len(kept)}I", *kept)
        for row in rows:
            buckets = getattr(row.features, part)
            ranks = sorted(rank[b] for b in buckets if b in rank)
            out += _small(len(buckets)) + _small(len(ranks))
            before = 0
            for one in ranks:
                out += _small(one - before)
                before = one
    labels = msgspec.json.encode([row.label for row in rows])
    path.write_bytes(lzma.compress(struct.pack("<I", len(labels)) + labels + out, preset=9))


def read_rows(path: Path) -> tuple[list[Row], list[dict[str, int]]]:
    """The rows, and how many features each part of a row had before the rare ones were left out."""
    data = lzma.decompress(path.read_bytes())
    (size,) = struct.unpack_from("<I", data)
    labels = msgspec.json.decode(data[4 : 4 + size], type=list[Label])
    at = 4 + size
    parts: dict[str, list[tuple[int, ...]]] = {}
    sizes: list[dict[str, int]] = [{} for _ in labels]
    for part in PARTS:
        (count,) = struct.unpack_from("<I", data, at)
        kept = struct.unpack_from(f"<{count}I", data, at + 4)
        at += 4 + 4 * count
        parts[part] = []
        for row in range(len(labels)):
            sizes[row][part], at = _read_small(data, at)
            ranks, at = _read_small(data, at)
            found, one = [], 0
            for _ in range(ranks):
                gap, at = _read_small(data, at)
                one += gap
                found.append(kept[one])
            parts[part].append(tuple(found))
    rows = [
        Row(label, Features(*(parts[part][number] for part in PARTS)))
        for number, label in enumerate(labels)
    ]
    return rows, sizes


def sizes_of(rows: Iterable[Row]) -> list[dict[str, int]]:
    return [{part: len(getattr(row.features, part)) for part in PARTS} for row in rows]


def weighing_less(row: Row, kind: str) -> Row:
    return structs.replace(row, label=structs.replace(row.label, kind=kind))


def _small(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_small(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, at
