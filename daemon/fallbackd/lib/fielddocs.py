"""
Descriptions of the fields of a class, read from the strings below them in its source.

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
from functools import cache
from types import ModuleType


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
