"""
The contract as an OpenRPC 1.3 document, made from the types that the code itself uses.

Source: https://spec.open-rpc.org (1.3.2), objects Method, Content Descriptor, Error.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec
from anyio.lowlevel import RunVar

from fallbackd.api.handler import Handler
from fallbackd.api.handlers import HANDLERS as OF_THE_API
from fallbackd.api.host import Caller
from fallbackd.lib.schemas import described_components
from fallbackd_client.wire import codes
from fallbackd_client.wire.envelope import Method
from fallbackd_client.wire.methods import METHODS
from fallbackd_client.wire.methods.events import Event
from fallbackd_client.wire.methods.rpc import (
    ABOUT,
    RPC_DISCOVER,
    RpcDiscoverParams,
    RpcDiscoverResult,
)

if TYPE_CHECKING:
    from fallbackd.engine.api import Engine

OPENRPC_VERSION = "1.3.2"
_REF = "#/components/schemas/{name}"
_made: dict[str, msgspec.Raw] = {}
"""Documents by the version of the daemon, of which a process has one."""
_ONE_AT_A_TIME: RunVar[anyio.CapacityLimiter] = RunVar("rpc.discover")
"""
Limit of threads. Where many callers ask at once, one thread makes the document, and the others find
it made. The parser that reads the descriptions fails where two threads use it
(python/cpython#106905).
"""

# Each of its own types, so `Any` for all together; the document is the specification's JSON.
Document = dict[str, Any]


@lru_cache(maxsize=2)
def document(version: str) -> Document:
    types = [each for one in METHODS for each in (one.params, one.result)]
    found, schemas = described_components((*types, Event), _REF)
    pairs = [(found[at * 2], found[at * 2 + 1]) for at in range(len(METHODS))]
    return {
        "openrpc": OPENRPC_VERSION,
        "info": {
            "title": "fallbackd",
            "version": version,
            "description": "JSON-RPC 2.0 over a Unix stream socket, one message a line."
            " After `events.subscribe` the daemon sends notifications `event` with params as"
            " `#/components/schemas/Event` describes them.",
        },
        "methods": [
            _method(one, params, result, schemas)
            for one, (params, result) in zip(METHODS, pairs, strict=True)
        ],
        "components": {
            "schemas": schemas,
            "errors": {_error_name(code): _error(code) for code in codes.KINDS},
        },
    }


def encoded(version: str) -> msgspec.Raw:
    if version not in _made:
        _made[version] = msgspec.Raw(msgspec.json.encode(document(version)))
    return _made[version]


def _method(
    one: Method[Any, Any], params: Document, result: Document, schemas: Document
) -> Document:
    shape = schemas[params["$ref"].rpartition("/")[2]] if "$ref" in params else params
    required = set(shape.get("required", ()))
    return {
        "name": one.name,
        "summary": one.summary,
        "description": one.summary,
        "paramStructure": "by-name",
        "params": [
            {
                "name": name,
                "description": schema.get("description", ""),
                "required": name in required,
                "schema": schema,
            }
            for name, schema in sorted(
                shape.get("properties", {}).items(), key=lambda each: each[0] not in required
            )
        ],
        "result": {"name": "result", "schema": result},
        "errors": [{"$ref": f"#/components/errors/{kind}"} for kind in one.errors],
        "examples": _examples(one),
        "x-read-only": one.read_only,
        "x-who": one.who,
    }


def _examples(one: Method[Any, Any]) -> list[Document]:
    """The example of a method, with the defaults of what it leaves out of its result."""
    if one.example is None:
        return []
    params, result = one.example
    whole = msgspec.to_builtins(msgspec.convert(result, one.result))
    return [
        {
            "name": one.name,
            "params": [{"name": name, "value": value} for name, value in params.items()],
            "result": {"name": "result", "value": whole},
        }
    ]


def _error_name(code: int) -> str:
    return codes.KINDS[code]


def _error(code: int) -> Document:
    about = ABOUT[code]
    return {
        "code": code,
        "message": about.text,
        "data": {"kind": codes.KINDS[code], **about.example},
        "x-kinds": [codes.KINDS[code], *about.kinds],
        "x-data": {"kind": "A stable word for programs.", **about.fields},
    }


async def rpc_discover(
    engine: "Engine", params: RpcDiscoverParams, caller: Caller
) -> RpcDiscoverResult:
    version = caller.host.version
    if (made := _made.get(version)) is not None:
        return made  # type: ignore[return-value] # already JSON
    # Beside the loop: it takes a quarter of a second, for which other callers must not wait.
    limiter = _ONE_AT_A_TIME.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(1)
        _ONE_AT_A_TIME.set(limiter)
    raw: Any = await anyio.to_thread.run_sync(encoded, version, limiter=limiter)
    return raw  # type: ignore[no-any-return] # already JSON


HANDLERS: tuple[Handler[Any, Any], ...] = tuple(
    sorted(
        (*OF_THE_API, Handler(RPC_DISCOVER, rpc_discover)),
        key=lambda one: one.method.name,
    )
)
"""Every method of this front, sorted by name."""
