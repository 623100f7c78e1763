"""
The official client of MCP, run by an interpreter that has it: `.venv-mcp`.

    python mcp_sdk_client.py MODE PROGRAM ARGUMENT …

Calls every tool of the server once and prints what came back as JSON. MODE: `legacy`, or a version.
"""

import json
import sys
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.types import ElicitResult

asked: list[str] = []


async def choose(_: Any, params: Any) -> ElicitResult:
    """A person who takes the first choice."""
    asked.append(params.message)
    (choice, *_rest) = params.requested_schema["properties"]["choice"]["enum"]
    return ElicitResult(action="accept", content={"choice": choice})


async def main(mode: str, program: str, *arguments: str) -> None:
    told: list[str] = []

    async def progress(_: float, __: float | None, message: str | None) -> None:
        told.append(message or "")

    server = StdioServerParameters(command=program, args=list(arguments))
    found: dict[str, Any] = {}
    async with Client(server, mode=mode, elicitation_callback=choose) as client:
        tools = (await client.list_tools()).tools

        async def call(name: str, **given: Any) -> Any:
            done = await client.call_tool(name, given, progress_callback=progress)
            found[name] = {"is_error": done.is_error, "structured": done.structured_content}
            return done.structured_content

        first = await call("delegate", prompt="x", backend="slow", wait_s=0)
        same = {"delegation": first["delegation"]}
        handle = found["delegate"]
        await call("wait", **same)
        await call("explain", **same)
        await call("cancel", **same)
        await call("status")
        await call("health")
        await call("suggest", goal="port it")
        written = await call("delegate", prompt="x", role="build", session="s")
        judged = await call("delegate", prompt="x", role="judge", session="s")
        found |= {"handle": handle, "written": written, "judged": judged}
        found |= {"version": client.protocol_version, "tools": [one.name for one in tools]}
    json.dump({**found, "asked": asked, "told": told}, sys.stdout)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
