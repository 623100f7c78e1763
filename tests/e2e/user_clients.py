"""
A caller that does not give up, as a program of the user that the daemon serves.

Usage: user_clients.py SOCKET NAME STOP: delegates one piece of work after the other until the file
STOP exists, and prints one JSON line for each that was acknowledged, and one for each end.
"""

import json
import os
import sys
from typing import Any

from fallbackd_client.client import Client

BACK_S = 60.0


def main(socket: str, name: str, stop: str) -> None:
    number = 0
    with Client(socket, timeout_s=BACK_S, connect_s=BACK_S, reconnect_s=BACK_S) as client:
        while not os.path.exists(stop):
            number += 1
            params = {
                "prompt": "x",
                "backend": "slow",
                "session": name,
                "request_id": f"{name}-{number}",
                "wait": "accepted",
            }
            begun = client.call("delegate", params)
            tell("accepted", begun)
            # The same request again: a client that lost its answer asks so.
            ended = client.call("delegate", {**params, "wait": "finished"})
            tell("ended", ended)


def tell(what: str, found: dict[str, Any]) -> None:
    failure = found.get("failure") or {}
    line = {
        "what": what,
        "delegation": found["delegation"],
        "state": found["state"],
        "detail": failure.get("detail"),
        "message": found.get("message"),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
