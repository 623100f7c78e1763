"""
Asks one question through fallbackd, blocking and async, against providers of this machine.

    fallbackd --config contrib/agent-framework/config.toml &
    python contrib/agent-framework/example.py --backend acme --key work=~/.config/acme/work.key

Without `--url` it asks a simulator of its own, whose first key is used up.
"""

import argparse
import asyncio
import json
import os
import urllib.error
import urllib.request

from guarded import Answer, Candidate, NobodyLeft, call, call_async
from simulator import USED_UP, Simulator

from fallbackd_client.aio import AsyncClient
from fallbackd_client.client import Client

OWNER = "agent-framework-example"


class Provider:
    """One chat completion per call, nothing repeated. `keys`: label → file that holds the key."""

    def __init__(self, url: str, keys: dict[str, str], prompt: str) -> None:
        self._url = url
        self._keys = keys
        self._prompt = prompt

    def send(self, candidate: Candidate) -> Answer:
        with open(os.path.expanduser(self._keys[candidate.credential or ""])) as file:
            key = file.read().strip()
        body = {
            "model": candidate.model,
            "messages": [{"role": "user", "content": self._prompt}],
        }
        request = urllib.request.Request(
            f"{self._url}/chat/completions",
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:  # an answer, if a bad one
            return Answer(error.code, error.read().decode(errors="replace"), dict(error.headers))
        except urllib.error.URLError as error:  # hides what happened: refused, no such host
            raise error.reason if isinstance(error.reason, OSError) else error from None
        used = answer.get("usage", {})
        tokens = used.get("prompt_tokens", 0), used.get("completion_tokens", 0)
        return Answer(200, answer, tokens=tokens)

    async def send_async(self, candidate: Candidate) -> Answer:
        return await asyncio.to_thread(self.send, candidate)


def text_of(answer: Answer) -> str:
    return str(answer.body["choices"][0]["message"]["content"])


async def ask_async(socket: str | None, provider: Provider, backend: str) -> str:
    async with AsyncClient(socket) as client:
        try:  # inside the block: what leaves it comes out as a group of exceptions
            answer = await call_async(client, provider.send_async, owner=OWNER, backend=backend)
        except NobodyLeft as error:
            return str(error)
    return text_of(answer)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--socket")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--url", help="of the provider; absent: a simulator")
    parser.add_argument("--key", action="append", default=[], metavar="LABEL=FILE")
    parser.add_argument("prompt", nargs="?", default="say pong")
    args = parser.parse_args()
    keys = dict(one.partition("=")[::2] for one in args.key)
    with Simulator() as simulator:
        if args.url is None and keys:
            with open(os.path.expanduser(next(iter(keys.values())))) as file:
                simulator.refusals[file.read().strip()] = USED_UP
        provider = Provider(args.url or simulator.url, keys, args.prompt)
        try:
            with Client(args.socket) as client:
                first = call(client, provider.send, owner=OWNER, backend=args.backend)
            print("blocking:", text_of(first))
            print("async:   ", asyncio.run(ask_async(args.socket, provider, args.backend)))
        except NobodyLeft as error:
            print(error, f"until {error.retry_at}" if error.retry_at else "")
            return 75
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
