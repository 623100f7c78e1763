"""
JSON schemas of types, with descriptions read from the strings below their fields in the source.

A field is described once, where it is declared:

```python
class Lease(Struct):
    expires_at: float
    'When the lease ends, unless it is used before.'
```

Python keeps no such string at run time, so the source is parsed, once for each module and only for
callers that want descriptions. Without a source file there are none.
"""

import ast
import inspect
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import msgspec
from msgspec import inspect as shapes


def field_docs(cls: type) -> dict[str, str]:
    """Descriptions by field name, in one line each, those of base classes included."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        module = sys.modules.get(one.__module__)
        if module is not None and one is not object:
            found.update(_of_module(module).get(one.__qualname__, {}))
    return found


@cache
def _of_module(module: ModuleType) -> dict[str, dict[str, str]]:
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError):  # a frozen or built-in module
        return {}
    return {node.name: _of_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _of_class(node: ast.ClassDef) -> dict[str, str]:
    found: dict[str, str] = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        match below:
            case ast.Expr(value=ast.Constant(value=str(text))):
                found[field.target.id] = " ".join(text.split())
    return found


Schema = dict[str, Any]  # JSON; its shape is that of JSON Schema


def described_components(
    types: Sequence[Any], ref_template: str
) -> tuple[tuple[Schema, ...], dict[str, Schema]]:
    """
    Return the same as `msgspec.json.schema_components`, every property of every Struct described.
    """
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
