"""
Delegation for voice agents: the functions and tools that they know, answered by fallbackd.

The daemon starts the agent CLIs, keeps their health for the whole machine and falls back along
the chain; here is nothing but translation. It is found as by every client: `$FALLBACKD_SOCKET`,
else below `$XDG_RUNTIME_DIR`, else below the state directory.

| without a daemon | |
| --- | --- |
| `suggest_platform`, `execute_with_fallback`, `execute_delegation` | `{"error": …}` |
| the functions about health | raise `NoDaemon`, which says how to start it |
| the tools `local_delegate_…` | `{"error": …}`, whatever goes wrong |
"""

import functools
import json
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fallbackd_client import Client, ClientError, NoDaemon, RpcError
from fallbackd_client.wire.codes import REFUSED, UNKNOWN_ID

logger = logging.getLogger("delegation-agent")

Json = dict[str, Any]  # results are plain JSON for a model to read

PLATFORMS: dict[str, Json] = {
    "opencode": {
        "name": "OpenCode",
        "binary": "opencode",
        "usual_path": "~/.local/bin/opencode",
        "max_context": 128_000,
        "max_tokens": 126_000,
        "min_tokens": 4_000,
        "rate_limit_key": "opencode_requests",
        "rate_limit": {"cap": 100, "unit": "requests", "window_s": 3600},
        "strengths": ["writing code", "refactoring", "tests", "debugging"],
        "weaknesses": ["searching the web", "large files"],
    },
    "codex": {
        "name": "Codex CLI",
        "binary": "codex",
        "usual_path": "~/.npm-global/bin/codex",
        "max_context": 200_000,
        "max_tokens": 195_000,
        "min_tokens": 8_000,
        "rate_limit_key": "codex_requests",
        "rate_limit": {"cap": 50, "unit": "requests", "window_s": 3600},
        "strengths": ["reasoning", "complex changes", "refactoring over many files"],
        "weaknesses": ["small edits", "streaming"],
    },
    "gemini": {
        "name": "Gemini CLI",
        "binary": "gemini",
        "usual_path": "~/.npm-global/bin/gemini",
        "max_context": 1_000_000,
        "max_tokens": 900_000,
        "min_tokens": 1_000,
        "rate_limit_key": "gemini_tokens",
        "rate_limit": {"cap": 1_000_000, "unit": "tokens", "window_s": 3600},
        "strengths": ["huge context", "vision", "audio"],
        "weaknesses": ["running code", "tools"],
    },
    "numasec": {
        "name": "Numasec",
        "binary": "numasec",
        "usual_path": "~/.npm-global/bin/numasec",
        "max_context": 128_000,
        "max_tokens": 120_000,
        "min_tokens": 2_000,
        "rate_limit_key": "numasec_requests",
        "rate_limit": {"cap": 60, "unit": "requests", "window_s": 3600},
        "strengths": ["security analysis", "review", "scanning"],
        "weaknesses": ["general coding", "the web"],
    },
    "hermes-api": {
        "name": "Hermes API server",
        "binary": None,
        "endpoint": "http://127.0.0.1:8088",
        "max_context": None,
        "max_tokens": None,
        "min_tokens": None,
        "rate_limit_key": "hermes_dispatch",
        "rate_limit": {"cap": 200, "unit": "requests", "window_s": 3600},
        "strengths": ["whatever Hermes can do"],
        "weaknesses": ["no direct voice", "asynchronous"],
    },
}
"""
The platforms that voice agents know. The daemon finds a program on its PATH, and takes an address
and a key from its configuration; `rate_limit` is what it shows, an hour long, and enforces where
`hourly_cap` says so.
"""

FALLBACK_CHAIN: dict[str, list[str]] = {
    "codex": ["opencode", "hermes-api", "gemini"],
    "opencode": ["codex", "hermes-api", "gemini"],
    "numasec": ["opencode", "codex", "hermes-api"],
    "gemini": ["opencode", "codex", "hermes-api"],
    "hermes-api": ["opencode", "codex", "gemini"],
}
"""
The chains that voice agents know. The daemon walks its own: the same order with claude among them,
or what `[chains]` of its configuration says.
"""
_FALLBACK_CHAIN = FALLBACK_CHAIN

DEFAULT_TTL_S = 600
HEALTH_CHECK_DELAY_S = 5.0
QUICK_S = 2.0
"""How long a hanging daemon may hold up a call whose last answer is known."""
CALL_S = 4.0
"""The same for any other call."""
MAX_WAIT_S = 604_800.0  # the contract's own bound
MAX_ROUNDS = 8  # attempts of one delegation
MAX_REASON_CHARS = 280
MAX_RESPONSE_CHARS = 500
TOKENS_OF_WORD = 10
NO_CAP = 9999
USABLE = frozenset({"healthy", "cooldown"})
GOING_ON = frozenset({"queued", "running", "waiting"})
ENDED_BADLY = frozenset({"refused", "failed", "cancelled"})

ETA_S = {"tiny": 60, "small": 300, "medium": 900, "large": 3600, "xlarge": 7200}
ETA_FACTOR = {"low": 0.6, "medium": 1.0, "high": 1.8, "extreme": 3.0}
MAX_ETA_S = 4 * 3600

NONE_LEFT = (
    "All healthy platforms are either rate-limited or marked broken. Wait, or clear marks with"
    " local_delegate_health action='clear'."
)

_MAX_ESTIMATES = 64
_estimates: OrderedDict[str, float] = OrderedDict()
"""Estimate in seconds by the goal that was suggested for, and by the prompt made of it."""
_estimates_lock = threading.Lock()
_MAX_ANSWERS = 64
_answers: OrderedDict[str, Json] = OrderedDict()
"""The last answers to quick questions, by method and parameters."""
_answers_lock = threading.Lock()
_MAX_UNANSWERED = 64
_unanswered: OrderedDict[str, str] = OrderedDict()
"""Ids of requests that the daemon may have taken, by their parameters: asked again, it is one."""
_USER_ETA_CORRECTION: dict[Any, float] = {}
"""Bridges import and write it. Estimates follow the times that the daemon measures."""


# --- health ------------------------------------------------------------------------------------


def mark_platform_broken(
    platform: str, reason: str, ttl_seconds: float | None = None, *, ttl: float | None = None
) -> None:
    """
    Take a platform out of use for every program of this user.

    Args:
        reason: Any words; one of the daemon's reasons (`rate_limit`, `auth`, …) is taken as such.
        ttl_seconds: How long, in seconds (600). 0 or less makes it healthy.
        ttl: The same.

    Raises:
        ClientError: The daemon knows no such platform, or there is no daemon.
        ValueError: Two different times.
    """
    if ttl is not None and ttl_seconds is not None and ttl != ttl_seconds:
        raise ValueError("`ttl` and `ttl_seconds` mean the same and differ: give one")
    given = ttl_seconds if ttl is None else ttl
    ttl_s = max(0.0, float(DEFAULT_TTL_S if given is None else given))
    words = str(reason)[:MAX_REASON_CHARS]
    _call("health", action="mark", target=platform, reason=words, ttl_s=ttl_s)
    logger.warning("voice-platform-health: marked %s broken — %s (ttl=%gs)", platform, words, ttl_s)


def clear_platform_health(platform: str | None = None) -> list[str]:
    """Make one platform healthy, or all. Returns those that had a mark."""
    cleared: list[str] = _call("health", action="clear", target=platform)["cleared"]
    return cleared


def get_health_snapshot() -> dict[str, Json]:
    """
    The platforms that are out of use, each with the keys of both known shapes.

    `expires_in_seconds` (whole) and `seconds_remaining` are None for a pause without an end.
    A platform that the daemon has found missing or not set up, without an attempt, is left out.
    `stale` is set where the daemon did
    not answer within `QUICK_S` and this is its last known answer.
    """
    found = _quick("health", action="list")
    return {
        name: {**_record(entry), **_stale(found)}
        for name, entry in found["health"].items()
        if _is_out(entry) and entry["source"] != "readiness"
    }


def is_platform_healthy(platform: str) -> bool:
    """Whether it may be used now. A platform that the daemon does not know is not healthy."""
    entry = _quick("health", action="list")["health"].get(platform)
    return entry is not None and not _is_out(entry)


def choose_fallback(platform: str) -> str | None:
    """The platform that the daemon's chain would use instead now; None: none is available."""
    try:
        candidates = _call("resolve", backend=platform)["candidates"]
    except RpcError as error:
        if error.code in (REFUSED, UNKNOWN_ID):
            return None
        raise
    others = [one for one in candidates if one["backend"] != platform]
    for verdicts in (("chosen",), ("healthy", "unproven", "affinity"), ("cooldown",)):
        for one in others:
            if one["verdict"] in verdicts:
                return str(one["backend"])
    return None


def _is_out(entry: Json) -> bool:
    return entry["state"] not in USABLE


def _record(entry: Json) -> Json:
    left_s = entry["seconds_remaining"]
    return {
        "reason": _words(entry),
        "expires_in_seconds": None if left_s is None else int(left_s),
        "seconds_remaining": left_s,
        "marked_broken_at": entry["marked_broken_at"],
        "ttl_seconds": entry["ttl_seconds"],
        "state": entry["state"],
    }


def _words(entry: Json) -> str:
    """What was said when it was marked; before it the reason, where the daemon knows one."""
    reason, detail = entry["reason"] or entry["state"], entry["detail"]
    words = detail if detail and reason in ("manual", "paused") else None
    return str(words or ": ".join(filter(None, (reason, detail))))[:MAX_REASON_CHARS]


# --- suggestions -------------------------------------------------------------------------------


def suggest_platform(
    goal: str,
    project_size: str | None = None,
    scope: str | None = None,
    complexity: str | None = None,
    user_id: Any = None,
    *,
    project_root: str | None = None,
) -> Json:
    """
    Which platform suits a task; those that cannot be used now are left out.

    The daemon reads size, scope and complexity that are not given from the words of the goal;
    without such words they are small, none and medium. `user_id` is accepted and not used.
    """
    try:
        return _suggest(goal, project_size, scope, complexity, project_root)
    except ClientError as error:
        return {"error": str(error), "rates": {}, "unhealthy": []}


def estimate_eta(project_size: str, complexity: str, user_id: Any = None) -> int:
    """Seconds before any correction; what the daemon compares the measured time with."""
    size_s = ETA_S.get(project_size, ETA_S["small"])
    return int(min(MAX_ETA_S, size_s * ETA_FACTOR.get(complexity, 1.0)))


def _suggest(
    goal: str,
    project_size: str | None,
    scope: str | None,
    complexity: str | None,
    project_root: str | None,
) -> Json:
    found = _quick(
        "suggest",
        goal=goal,
        project_size=project_size,
        scope=scope,
        complexity=complexity,
        project_root=project_root,
    )
    if found["estimate_s"] is not None:
        _remember(goal, found["estimate_s"])
    unhealthy = {name: _words(one) for name, one in found["unhealthy"].items() if _is_out(one)}
    if found["suggestion"] is None:
        return {
            "error": NONE_LEFT,
            "rates": _rates(found),
            "unhealthy": list(unhealthy),
            "unhealthy_reasons": unhealthy,
            "suggestion": None,
            "reason": found["reason"],
            **_stale(found),
        }
    return {
        "suggestion": found["suggestion"],
        "reason": found["reason"],
        "estimated_eta_seconds": round(found["eta_s"]),
        "estimated_eta_display": found["eta_display"],
        "all_scores": found["scores"],
        "rate_limits": _rates(found),
        "available_platforms": found["available"],
        "unhealthy_platforms": list(unhealthy),
        "unhealthy_reasons": unhealthy,
        "was_fallback": found["was_fallback"],
        **_stale(found),
    }


def _rates(found: Json) -> dict[str, Json]:
    spent = {name for name, one in found["unhealthy"].items() if one["reason"] == "local_budget"}
    return {
        name: {
            "available": name not in spent,
            "used": one["used"],
            "cap": NO_CAP if one["cap"] is None else one["cap"],
            "unit": one["unit"],
            "window_s": one["window_s"],
        }
        for name, one in found["rate_limits"].items()
    }


def _remember(text: str, estimate_s: float) -> None:
    with _estimates_lock:
        _estimates[text] = estimate_s
        _estimates.move_to_end(text)
        while len(_estimates) > _MAX_ESTIMATES:
            _estimates.popitem(last=False)


# --- work --------------------------------------------------------------------------------------


def assemble_prompt(
    goal: str, subgoals: Iterable[str] | None, platform: str, project_root: str | None = None
) -> str:
    """One text of a goal and its steps, for any platform."""
    parts = [f"Goal: {goal.strip()}"]
    steps = [words for step in subgoals or () if (words := str(step).strip())]
    if steps:
        parts.append("Steps, in this order:")
        parts.extend(f"{number}. {step}" for number, step in enumerate(steps, 1))
    if project_root:
        parts.append(f"The project is in {project_root}.")
    parts.append("Delete nothing that was not asked for. If you cannot go on, say what stops you.")
    prompt = "\n".join(parts)
    if (estimate_s := _estimates.get(goal)) is not None:
        _remember(prompt, estimate_s)
    return prompt


def execute_with_fallback(
    prompt: str,
    platform: str,
    session_id: str | None = None,
    workdir: str | None = None,
    health_check_delay: float = HEALTH_CHECK_DELAY_S,
    *,
    estimate_s: float | None = None,
) -> Json:
    """
    Have a prompt worked on by a platform, or by the next healthy one of its chain.

    Returns when the work has ended, or when a platform has been at it for `health_check_delay`
    seconds without breaking; 0 returns at once. The work continues, and the daemon keeps watching:
    it falls back whenever a platform breaks.

    Args:
        session_id: Conversation; one of its own where none is given.
        workdir: Where the agent works. Without it, where the daemon's configuration says.
        estimate_s: How long it may take; else what was estimated for this goal or prompt.

    Returns:
        Always `requested_platform`, `active_platform`, `fallback_from` (None without a
        fallback), `session_id`, `log_path`; with the work done also `text`. `error` where it
        was not done, with `health_warning` and `health` when no platform was left.
    """
    try:
        return _execute(prompt, platform, session_id, workdir, health_check_delay, estimate_s)
    except ClientError as error:
        return _not_begun(platform, session_id, error)


def execute_delegation(
    prompt: str, platform: str, session_id: str | None = None, workdir: str | None = None
) -> Json:
    """The same on this platform or not at all; returns as soon as it is accepted."""
    try:
        return _execute(prompt, platform, session_id, workdir, 0.0, None, failover=False)
    except ClientError as error:
        return _not_begun(platform, session_id, error)


def prepare(platform: str, session_id: str | None = None, workdir: str | None = None) -> bool:
    """
    Start the agent for a sentence that comes soon: call it when the wake word is heard.

    Never raises. Returns whether the sentence will need no start.
    """
    place = os.path.abspath(os.path.expanduser(workdir)) if workdir else None
    try:
        found = _quick("prepare", backend=platform, session=session_id, cwd=place)
    except ClientError as error:
        logger.info("voice: %s is not prepared — %s", platform, error)
        return False
    return bool(found["ready"]) and not found.get("stale")


def _not_begun(platform: str, session_id: str | None, error: ClientError) -> Json:
    return {
        "error": str(error),
        "requested_platform": platform,
        "active_platform": platform,
        "fallback_from": None,
        "session_id": session_id,
    }


def _execute(
    prompt: str,
    platform: str,
    session_id: str | None,
    workdir: str | None,
    delay_s: float,
    estimate_s: float | None,
    *,
    failover: bool = True,
) -> Json:
    estimate_s = _estimates.get(prompt) if estimate_s is None else estimate_s
    params: Json = {
        "prompt": prompt,
        "backend": platform,
        "session": session_id,
        "cwd": os.path.abspath(os.path.expanduser(workdir)) if workdir else None,
        "mode": "interactive",
        "failover": None if failover else False,
        "metadata": {"estimate_s": estimate_s} if estimate_s else None,
    }
    if delay_s <= 0:
        return _result(_delegate(**params, wait="accepted"))
    # Not `settled`: a first line of output may be that of a platform that is about to fail.
    wait_s = min(float(delay_s), MAX_WAIT_S)
    found = _delegate(**params, wait="finished", wait_s=wait_s)
    return _result(_followed(found, wait_s))


def _delegate(**params: Any) -> Json:
    """The same request again, after one that was not answered, is not run twice."""
    key = json.dumps(params, sort_keys=True)
    with _answers_lock:
        request_id = _unanswered.pop(key, None)
    try:
        return _call("delegate", **params, request_id=request_id)
    except NoDaemon as error:
        again = error.request_id or request_id
        if again is not None:
            with _answers_lock:
                _unanswered[key] = again
                while len(_unanswered) > _MAX_UNANSWERED:
                    _unanswered.popitem(last=False)
        raise


def delegation_status(delegation: str) -> Json:
    """
    How work stands now: the keys of `execute_with_fallback`, with `text` once it has succeeded.

    Raises:
        ClientError: There is no such delegation, or no daemon.
    """
    return _result(_call("delegation.get", delegation=delegation))


def wait_for(delegation: str, timeout_s: float | None = None) -> Json:
    """
    The same at the end of the work, or when `timeout_s` is over or a question opens.

    Raises:
        ClientError: There is no such delegation, or no daemon.
    """
    return _result(_call("delegation.wait", delegation=delegation, timeout_s=timeout_s))


def delegation_result(delegation: str) -> str | None:
    """
    The answer of work that has succeeded; None while it is not known.

    Raises:
        ClientError: There is no such delegation, or no daemon.
        RuntimeError: The work has ended without an answer; says why.
    """
    found = delegation_status(delegation)
    if "error" in found:
        raise RuntimeError(found["error"])
    return found.get("text")


def _followed(found: Json, wait_s: float) -> Json:
    """A platform that broke within its time leaves as much time to the next one."""
    known = 1
    for _ in range(MAX_ROUNDS):
        attempts = found["attempts"]
        is_between = bool(attempts) and attempts[-1]["ended_at"] is not None
        is_new = len(attempts) > known
        if found["state"] not in GOING_ON or not (is_between or is_new):
            break
        known = len(attempts)
        found = _call("delegation.wait", delegation=found["delegation"], timeout_s=wait_s)
    return found


def _result(found: Json) -> Json:
    attempts, hops = found["attempts"], found["hops"]
    is_reactive = any(hop["trigger"] == "reactive" for hop in hops)
    result: Json = {
        "session_id": found["session"],
        "delegation": found["delegation"],
        "state": found["state"],
        "requested_platform": found["requested_platform"],
        # `active` follows when the attempt has started, the hop is on record before.
        "active_platform": hops[-1]["to"] if hops else found["active_platform"],
        "fallback_from": found["fallback_from"],
        "fallback_reason": found["fallback_reason"],
        "original_log_path": attempts[0]["log_path"] if is_reactive and attempts else None,
        "log_path": found["log_path"],
        "tmux_window": found["tmux_window"],
        "warnings": found["warnings"],
    }
    if found["text"] is not None:
        result |= {"text": found["text"], "response": found["text"][:MAX_RESPONSE_CHARS]}
    if found["question"] is not None:
        result["question"] = found["question"]
    if found["state"] in ENDED_BADLY:
        result["error"] = _why(found)
    if found["state"] == "refused":
        result["health_warning"] = result["error"]
        result["retry_at"] = found["retry_at"]
        result["health"] = get_health_snapshot()
    return result


def _why(found: Json) -> str:
    if found["message"]:
        return str(found["message"])
    failure = found["failure"] or {}
    words = (f"the work was {found['state']}", failure.get("reason"), failure.get("detail"))
    return ": ".join(filter(None, words))


def _call(method: str, **params: Any) -> Json:
    """
    One call on a connection of its own, so that callers in threads do not wait for each other.

    A daemon that hangs costs `CALL_S` on top of the time that the call itself may take.

    Raises:
        ClientError: The daemon said no, there is none, or it hangs.
    """
    with Client(timeout_s=CALL_S, reconnect_s=CALL_S) as client:
        given = {name: value for name, value in params.items() if value is not None}
        answer: Json = client.call(method, given)
        return answer


def _quick(method: str, **params: Any) -> Json:
    """
    A call that a speaking person waits for: a daemon that hangs costs `QUICK_S`, then its last
    answer to the same question is given, marked with `stale`.

    Raises:
        ClientError: The daemon said no, there is none, or it hangs and has not answered before.
    """
    given = {name: value for name, value in params.items() if value is not None}
    key = json.dumps([method, given], sort_keys=True)
    try:
        with Client(timeout_s=QUICK_S, connect_s=QUICK_S, reconnect_s=0.0) as client:
            answer: Json = client.call(method, given)
    except NoDaemon as error:
        with _answers_lock:
            known = _answers.get(key)
        if error.cause not in ("timeout", "busy") or known is None:
            raise
        return {**known, "stale": True}
    with _answers_lock:
        _answers[key] = answer
        while len(_answers) > _MAX_ANSWERS:
            _answers.popitem(last=False)
    return answer


def _stale(found: Json) -> Json:
    return {"stale": True} if found.get("stale") else {}


# --- tools -------------------------------------------------------------------------------------

Tool = Callable[..., Json]


def _tool(run: Callable[[Json], Json]) -> Tool:
    """A tool takes its arguments as one object, or by name, and never raises."""

    @functools.wraps(run)
    def call(args: Mapping[str, Any] | None = None, **more: Any) -> Json:
        try:
            return run({**(args or {}), **more})
        except (ClientError, ValueError, TypeError) as error:
            return {"error": str(error)}
        except Exception as error:
            logger.exception("%s failed", run.__name__)
            return {"error": f"{run.__name__} failed ({type(error).__name__}): {error}"}

    return call


def _required(args: Json, name: str) -> str:
    value = args.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} is required")
    return value


@_tool
def local_delegate_suggest(args: Json) -> Json:
    """`goal`, and where known `project_size`, `scope`, `complexity`, `project_root`."""
    found = _suggest(
        _required(args, "goal"),
        args.get("project_size"),
        args.get("scope"),
        args.get("complexity"),
        args.get("project_root"),
    )
    return found if "error" in found else {"result": found}


@_tool
def local_delegate_assemble(args: Json) -> Json:
    """`goal`, `subgoals`, `platform`, and where known `project_root`."""
    platform = args.get("platform") or "opencode"
    goal = _required(args, "goal")
    prompt = assemble_prompt(goal, args.get("subgoals"), platform, args.get("project_root"))
    return {
        "result": {
            "prompt": prompt,
            "platform": platform,
            "length": len(prompt),
            "tokens_est": len(prompt.split()) * TOKENS_OF_WORD,
        }
    }


@_tool
def local_delegate_execute(args: Json) -> Json:
    """`prompt`, `platform`, and where known `session_id`, `workdir`, `estimated_seconds`."""
    found = _execute(
        _required(args, "prompt"),
        args.get("platform") or "opencode",
        args.get("session_id"),
        args.get("workdir"),
        float(args.get("health_check_delay", HEALTH_CHECK_DELAY_S)),
        args.get("estimated_seconds"),
    )
    return {"result": found}


@_tool
def local_delegate_status(args: Json) -> Json:
    """`delegation` as `execute` returned it, and `wait_s` where its end is waited for."""
    delegation = _required(args, "delegation")
    wait_s = args.get("wait_s")
    if wait_s is None:
        return {"result": delegation_status(delegation)}
    return {"result": wait_for(delegation, min(float(wait_s), MAX_WAIT_S))}


@_tool
def local_delegate_eta(args: Json) -> Json:
    """`actual_seconds` and `estimated_seconds` of work that is done."""
    actual_s = float(args.get("actual_seconds") or 0)
    estimated_s = float(args.get("estimated_seconds") or 0)
    if actual_s <= 0 or estimated_s <= 0:
        return {"error": "actual_seconds and estimated_seconds are required"}
    return {
        "result": {
            "correction_factor": actual_s / max(estimated_s, 1.0),
            "applied": False,
            "note": "Nothing to apply: the daemon times the work that is delegated with an"
            " estimate, and its suggestions follow those times, platform by platform.",
        }
    }


@_tool
def local_delegate_health(args: Json) -> Json:
    """`action`: list, clear or mark; `platform`, and for mark `reason`, `ttl_seconds`."""
    action = args.get("action") or "list"
    platform: Any = args.get("platform") or None
    if action == "mark" and not isinstance(platform, str):
        return {"error": "platform is required for action=mark"}
    match action:
        case "list":
            marked = get_health_snapshot()
            note = "These are skipped by suggest and by execute until their time is over."
            return {
                "result": {
                    "health": marked,
                    "unhealthy": marked,
                    "fallback_chain": FALLBACK_CHAIN,
                    "note": note,
                }
            }
        case "clear":
            cleared = clear_platform_health(platform)
            return {"result": {"cleared": cleared, "unhealthy": get_health_snapshot()}}
        case "mark":
            reason = str(args.get("reason") or "manual mark via tool")[:MAX_REASON_CHARS]
            ttl_s = args.get("ttl_seconds", args.get("ttl", DEFAULT_TTL_S))
            mark_platform_broken(platform, reason, ttl_s)
            return {
                "result": {
                    "marked": platform,
                    "reason": reason,
                    "ttl_seconds": ttl_s,
                    "fallback_chain": FALLBACK_CHAIN.get(platform, []),
                }
            }
        case _:
            return {"error": f"unknown action: {action} (use list|clear|mark)"}
