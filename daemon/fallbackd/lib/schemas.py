"""JSON schemas of types, with the descriptions that stand below their fields (`fielddocs`)."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import inspect as shapes

from fallbackd.lib.fielddocs import field_docs

Schema = dict[str, Any]  # JSON; its shape is that of JSON Schema


def described_components(
    types: Sequence[Any], ref_template: str
) -> tuple[tuple[Schema, ...], dict[str, Schema]]:
    """As `msgspec.json.schema_components`, every property of every Struct described."""
    structs = list(structs_in(types))
    found, components = msgspec.json.schema_components(
        (*types, *structs), ref_template=ref_template
    )
    named = {
        cls: components[ref["$ref"].rpartition("/")[2]]
        for cls, ref in zip(structs, found[len(types) :], strict=True)
    }
    for cls, schema in named.items():
        texts = field_docs(cls)
        for field in msgspec.structs.fields(cls):
            if text := texts.get(field.name):
                schema["properties"][field.encode_name]["description"] = text
    return found[: len(types)], components


def structs_in(types: Iterable[Any]) -> dict[type, None]:
    """Every Struct that these types hold, in the order in which they are met."""
    found: dict[type, None] = {}
    for one in shapes.multi_type_info(types):
        _collect(one, found)
    return found


def _collect(shape: shapes.Type, found: dict[type, None]) -> None:
    match shape:
        case shapes.StructType(cls=cls, fields=fields):
            if cls not in found:
                found[cls] = None
                for field in fields:
                    _collect(field.type, found)
        case shapes.UnionType(types=several):
            for one in several:
                _collect(one, found)
        case shapes.TupleType(item_types=several):
            for one in several:
                _collect(one, found)
        case shapes.VarTupleType(item_type=one) | shapes.ListType(item_type=one):
            _collect(one, found)
        case shapes.DictType(key_type=key, value_type=value):
            _collect(key, found)
            _collect(value, found)
        case shapes.Metadata(type=one):
            _collect(one, found)
        case _:
            pass
