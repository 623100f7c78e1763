"""`metrics`: what is known of backends and work, in the text format of Prometheus."""

from __future__ import annotations

import argparse
import sys

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fallbackd_client.calls import Json
    from fallbackd_client.client import Client

    Sample = tuple[dict[str, str], float]

STATES = ("healthy", "rate_limited", "cooldown", "broken", "paused")
_PREFIX = "fallbackd_"


def register(parser: argparse.ArgumentParser) -> None:
    """There is nothing to choose."""


def run(args: argparse.Namespace, client: Client) -> int:
    status = client.call("status")
    used = client.call("usage").get("usage") or []
    if args.json:
        show(args, {"status": status, "usage": used}, lambda _, style: "")
        return exits.OK
    sys.stdout.write(text_of(status, used))
    return exits.OK


def text_of(status: dict[str, Json], used: list[dict[str, Json]]) -> str:
    """
    Args:
        status: The answer of `status`.
        used: The rows of `usage`.
    """
    health: dict[str, dict[str, Json]] = status.get("health") or {}
    totals = [one for one in used if one.get("period") == "total"]
    work: dict[str, Json] = status.get("delegations") or {}
    parts = [
        *_family("up", "gauge", "Whether the daemon answers.", [({}, 1.0)]),
        *_family(
            "backend_state",
            "gauge",
            "State of a backend: 1 for the one it is in.",
            (
                ({"backend": name, "state": state}, float(one.get("state") == state))
                for name, one in health.items()
                for state in STATES
            ),
        ),
        *_family(
            "backend_unavailable_until_seconds",
            "gauge",
            "Unix time at which a backend is expected back.",
            (
                ({"backend": name}, float(one["until_at"]))
                for name, one in health.items()
                if one.get("until_at") is not None and one.get("state") != "healthy"
            ),
        ),
        *_family(
            "plan_used_ratio",
            "gauge",
            "Used share of a window of a plan, as far as a figure is fresh.",
            _figures(health),
        ),
        *_family(
            "attempts_total",
            "counter",
            "Attempts that have ended, by outcome.",
            (
                ({"backend": str(one["backend"]), "outcome": outcome}, float(one.get(key) or 0))
                for one in totals
                for outcome, key in (("succeeded", "successes"), ("failed", "failures"))
            ),
        ),
        *_family(
            "tokens_total",
            "counter",
            "Tokens of prompts and answers.",
            (
                ({"backend": str(one["backend"]), "kind": kind}, float(one.get(key) or 0))
                for one in totals
                for kind, key in (("input", "input_tokens"), ("output", "output_tokens"))
            ),
        ),
        *_family(
            "cost_usd_total",
            "counter",
            "Cost in US dollars, where it is known.",
            (
                ({"backend": str(one["backend"])}, float(one["cost_usd"]))
                for one in totals
                if one.get("cost_usd") is not None
            ),
        ),
        *_family(
            "delegations",
            "gauge",
            "Delegations that have not ended, by state.",
            (
                ({"state": state}, float(work.get(state) or 0))
                for state in ("running", "waiting", "queued", "awaiting_answer")
            ),
        ),
        *_family(
            "delegations_kept",
            "gauge",
            "Ended delegations on record, by state.",
            (
                ({"state": state}, float(count))
                for state, count in sorted((work.get("by_state") or {}).items())
            ),
        ),
    ]
    return "\n".join(parts) + "\n"


def _figures(health: dict[str, dict[str, Json]]) -> Iterator[Sample]:
    seen = set()
    for name, one in health.items():
        for each in one.get("limits") or []:
            labels = {
                "backend": name,
                "window_seconds": "" if each.get("window_s") is None else f"{each['window_s']:.0f}",
                "unit": str(each.get("unit") or "percent"),
                "model": str(each.get("model") or ""),
                "credential": str(each.get("credential") or ""),
            }
            place = tuple(labels.values())
            if each.get("fresh") and place not in seen:
                seen.add(place)
                yield labels, float(each["used_percent"]) / 100.0


def _family(name: str, kind: str, about: str, samples: Iterable[Sample]) -> list[str]:
    """The lines of one metric; none where there is no sample."""
    lines = [f"{_PREFIX}{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
    if not lines:
        return []
    return [f"# HELP {_PREFIX}{name} {about}", f"# TYPE {_PREFIX}{name} {kind}", *lines]


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
