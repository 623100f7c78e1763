"""
Results as text for people. Every view takes cleaned JSON and leaves nothing out silently.

Fields that an older or newer daemon does not send are simply not shown.
"""

from __future__ import annotations

import time

from fallbackd_client.cli import exits
from fallbackd_client.cli.output import (
    NARROW,
    Style,
    clean,
    clock,
    duration,
    one_line,
    style_of,
    table,
    when,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO

    from fallbackd_client.calls import Json


_WHY = {
    "rate_limit": "is rate-limited",
    "usage_limit": "hit its usage limit",
    "billing": "needs credit or a payment method",
    "auth": "is logged out",
    "overloaded": "is overloaded",
    "server_error": "reported a server error",
    "network": "cannot be reached",
    "local_network": "cannot be reached without a network",
    "timeout": "timed out",
    "stalled": "stopped responding",
    "crash": "crashed",
    "empty_result": "gave no answer",
    "model_not_found": "does not offer the model",
    "content_policy": "refused the prompt",
    "provider_policy": "is not allowed by the settings of its account",
    "format_error": "did not accept the request",
    "not_installed": "is not installed",
    "not_configured": "is not set up",
    "permission": "lacks a permission",
    "tls": "has a certificate that is not accepted",
    "local_budget": "has used up its budget",
    "context_overflow": "has too small a context for the prompt",
    "payload_too_large": "does not take a prompt of this size",
    "session": "did not take the conversation",
    "approval_required": "needs an approval",
    "manual": "was taken out of rotation",
    # Verdicts of a candidate that was passed over.
    "rate_limited": "is rate-limited",
    "cooldown": "is recovering",
    "broken": "is out of rotation",
    "paused": "is paused",
    "disabled": "is disabled",
    "in_trial": "is being probed",
    "budget": "has used up its budget",
    "context": "has too small a context for the prompt",
    "consent": "is billed by use and has no consent",
    "must_differ": "belongs to an excluded model family",
    "same_as_failed": "uses the account that failed",
    "protocol": "speaks another API",
}
"""Predicates by reason or verdict; of any other one only the name is said."""


def hop_sentence(hop: dict[str, Json], delegation: dict[str, Json]) -> str:
    """
    `codex hit its usage limit (resets 23:09); continuing with opencode.`

    Args:
        hop: One of `hops`, cleaned.
        delegation: Where its attempts state when a limit ends.
    """
    source, target = _name(hop, "from"), _name(hop, "to")
    if hop.get("trigger") == "recovery":
        return f"{target} is available again; continuing there instead of with {source}."
    reason = one_line(hop.get("reason") or "unknown")
    what = said(reason)
    details = [hop.get("evidence"), *(one.get("detail") for one in _failures(hop, delegation))]
    if reason == "not_configured" and "version" in details:
        what = "is of a version that is not supported"
    at = _reset_at(hop, delegation)
    now = time.time()
    when = "" if at is None or at <= now else f" (resets {_minutes(clock(at, now))})"
    then = f"continuing with {target}" if hop.get("to") else "no other backend is available"
    return f"{source} {what}{when}; {then}."


def said(reason: str) -> str:
    """The reason of an outage behind the name of its backend: `is logged out`."""
    return _WHY.get(reason, f"failed ({reason})")


def cause(reason: object) -> str:
    """
    `codex rate-limited`

    Args:
        reason: The `fallback_reason` of a delegation, a sentence that is too long for a column.
    """
    word, _, rest = one_line(reason).partition(": ")
    if word in _WHY:
        return f"{rest.partition(' ')[0]} {_WHY[word].removeprefix('is ')}"
    what, moved, _ = rest.partition("; continuing with")
    return what if moved else one_line(reason)


def _name(hop: dict[str, Json], end: str) -> str:
    name = one_line(hop.get(end) or "?")
    # A model is said where it is what changes.
    if hop.get("from") == hop.get("to") and hop.get(f"{end}_model"):
        name += f" [{one_line(hop[f'{end}_model'])}]"
    return name


def _failures(hop: dict[str, Json], delegation: dict[str, Json]) -> list[dict[str, Json]]:
    """Failures of the attempts at the backend that was left."""
    attempts = delegation.get("attempts") or []
    found = [one.get("failure") for one in attempts if one.get("backend") == hop.get("from")]
    return [one for one in found if isinstance(one, dict)]


def _reset_at(hop: dict[str, Json], delegation: dict[str, Json]) -> float | None:
    stated = [one.get("stated_reset_at") for one in _failures(hop, delegation)]
    return next((float(at) for at in stated if isinstance(at, int | float)), None)


def _minutes(shown: str) -> str:
    return shown.rpartition(":")[0]


_STATUS = {
    "not_permitted": exits.NOT_PERMITTED,
    "configuration": exits.CONFIG,
    "failed": exits.FAILED,
}
"""Exit codes by kind of what helps. Where nothing of that is named, waiting helps."""


def exit_code(data: dict[str, Json]) -> int:
    """
    75 where waiting helps with one candidate at least, else 77, 78 or 1.

    Args:
        data: A refused delegation, or the data of a refused `resolve`.
    """
    found = [_STATUS.get(str(fix.get("kind"))) for _, fix in _fixes(data)]
    if not found or None in found:
        return exits.TRY_LATER
    return next(c for c in _STATUS.values() if c in found)


def advice(data: dict[str, Json], *, now: float) -> list[str]:
    """Lines: when to try again, and what would help each candidate that waiting does not help."""
    shown = clean(data)
    lines = []
    if shown.get("retry_at") is not None and exit_code(data) == exits.TRY_LATER:
        lines.append(f"available again at {when(shown['retry_at'], now)}")
    lost = lost_programs(shown)
    if lost:
        lines.append(not_found(lost))
    if is_only_missing(shown):
        return lines  # the refusal itself has named them, and how to install one
    for backend, fix in _fixes(shown):
        if fix.get("kind") in _STATUS and backend not in lost:
            lines.append(f"{one_line(backend)}: {one_line(fix.get('text'))}")
    return list(dict.fromkeys(lines))


def lost_programs(data: dict[str, Json]) -> dict[str, str]:
    """Candidates that the daemon does not find and this shell does, each with its place."""
    missing = {
        str(one.get("backend")): str(one.get("detail") or "").partition(" ")[0]
        for one in data.get("candidates") or []
        if isinstance(one, dict) and one.get("verdict") == "not_installed"
    }
    if not missing:
        return {}
    from shutil import which  # slow to load, and needed only here

    found = {backend: which(program) for backend, program in missing.items() if program}
    return {backend: place for backend, place in found.items() if place is not None}


def not_found(lost: dict[str, str]) -> str:
    """
    Args:
        lost: Of `lost_programs`.
    """
    shown = ", ".join(f"{one_line(name)} ({one_line(place)})" for name, place in lost.items())
    return (
        f"installed, but not on the daemon's PATH: {shown};"
        " fix this with: fallbackd-client doctor --fix"
    )


def is_only_missing(data: dict[str, Json]) -> bool:
    """No candidate is installed: a table of them would say the same in each line."""
    found = [one for one in data.get("candidates") or [] if isinstance(one, dict)]
    return bool(found) and all(one.get("verdict") == "not_installed" for one in found)


def _fixes(data: dict[str, Json]) -> Iterable[tuple[str, dict[str, Json]]]:
    """Each candidate, with what the daemon says would help it."""
    for candidate in data.get("candidates") or []:
        if isinstance(candidate, dict):
            fix = candidate.get("fix")
            yield str(candidate.get("backend")), fix if isinstance(fix, dict) else {}


def now() -> float:
    return time.time()


def health_table(health: dict[str, Json], style: Style, *, verbose: bool = False) -> str:
    """
    A line for each backend; with `verbose` one more for each of its credentials, and for each
    scope that is not healthy.
    """
    rows: list[list[object]] = []
    at = now()
    for backend, entry in health.items():
        rows.append([backend, *_health_cells(entry, at)])
        if verbose:
            rows += _detail_rows(backend, entry, at)
    if not rows:
        return "no backends"
    if style.width is not None and style.width < NARROW:
        rows = [
            [name, state, str(until).rpartition("(")[2].rstrip(")"), reason]
            for name, state, _, until, reason in rows
        ]
        return table(["BACKEND", "STATE", "UNTIL", "REASON"], rows, style)
    return table(["BACKEND", "STATE", "COUNT", "UNTIL", "REASON"], rows, style)


def _detail_rows(backend: str, entry: dict[str, Json], at: float) -> list[list[object]]:
    keys = [one for one in entry.get("credentials") or [] if isinstance(one, dict)]
    labels = tuple(f"/{one.get('label')}" for one in keys)
    scopes = [
        scope
        for scope in entry.get("scopes") or []
        if isinstance(scope, dict)
        and scope.get("state") != "healthy"
        and not _is_said(str(scope.get("scope")), backend, labels)
    ]
    return [
        *([f"· credential {one.get('label')}", *_health_cells(one, at)] for one in keys),
        *([f"· {scope.get('scope')}", *_health_cells(scope, at)] for scope in scopes),
    ]


def _is_said(scope: str, backend: str, labels: tuple[str, ...]) -> bool:
    """Return whether one of the lines above is about this scope."""
    if scope in (backend, f"backend:{backend}"):
        return True
    return bool(labels) and scope.startswith("credential:") and scope.endswith(labels)


def _health_cells(entry: dict[str, Json], at: float) -> list[object]:
    state = str(entry.get("state", "?"))
    if state == "cooldown":  # elsewhere that word means out of use
        state = "recovering"
    if entry.get("unproven"):
        state += " (unproven)"
    until = ""
    if entry.get("until_at") is not None:
        until = when(entry["until_at"], at)
    elif entry.get("seconds_remaining") is not None:
        until = f"in {duration(entry['seconds_remaining'])}"
    words = list(dict.fromkeys(entry.get(key) for key in ("reason", "detail", "note")))
    why = ": ".join(str(w) for w in words if w)
    why = why or limits_words(entry.get("limits"), at)
    if entry.get("seen_by"):  # by another machine that shares its health
        age = "" if entry.get("age_s") is None else f", {duration(entry['age_s'])} ago"
        why = f"{why} (seen by {entry['seen_by']}{age})"
    return [state, entry.get("count") or "", until, why]


def limits_words(limits: Json, at: float) -> str:
    """`5h 63%, resets 14:05:00 · 7d 41%`: windows of the whole plan; old figures with their age."""
    words: list[str] = []
    for one in limits if isinstance(limits, list) else ():
        if one.get("model") or one.get("credential") or one.get("unit") != "percent":
            continue
        text = f"{window_of(one)} {one['used_percent']:.0f}%"
        if not one.get("fresh"):
            text += f" ({duration(one.get('age_s') or 0.0)} ago)"
        elif one.get("resets_at") is not None and not words:
            text += f", resets {clock(one['resets_at'], at)}"
        words.append(text)
    return " \u00b7 ".join(words)


def window_of(one: dict[str, Json]) -> str:
    """`5h`, `7d`; what is counted where no length is stated."""
    if one.get("window_s") is None:
        return str(one.get("unit", "?"))
    return duration(one["window_s"]).replace(" ", "")


def candidates_table(candidates: Sequence[Json], style: Style, *, indent: str = "") -> str:
    """A line for each candidate, with its verdict."""
    at = now()
    rows = [
        [
            _candidate_name(candidate),
            candidate.get("verdict", "?"),
            candidate.get("state") or "",
            when(candidate["until_at"], at) if candidate.get("until_at") is not None else "",
            _candidate_reason(candidate),
        ]
        for candidate in candidates
        if isinstance(candidate, dict)
    ]
    if not rows:
        return indent + "no candidates"
    headers = ["CANDIDATE", "VERDICT", "STATE", "UNTIL", "REASON"]
    return table(headers, rows, style, indent=indent)


def _candidate_reason(candidate: dict[str, Json]) -> str:
    """Return the reason with its scope, where that is not the candidate's own."""
    words = ": ".join(str(candidate[key]) for key in ("reason", "detail") if candidate.get(key))
    scope = candidate.get("scope")
    if not scope or scope == f"backend:{candidate.get('backend')}":
        return words
    return f"{words} ({scope})".lstrip()


def _candidate_name(candidate: dict[str, Json]) -> str:
    name = str(candidate.get("backend", "?"))
    if candidate.get("model"):
        name += f" [{candidate['model']}]"
    if candidate.get("credential"):
        name += f" · {candidate['credential']}"
    if candidate.get("tier"):
        name += f" ({candidate['tier']})"
    return name


def refusal(data: dict[str, Json], stream: TextIO) -> str:
    """Say what helps, and why each candidate could not be used."""
    shown = clean(data)
    parts = advice(data, now=now())
    if shown.get("candidates") and not is_only_missing(shown):
        parts.append(candidates_table(shown["candidates"], style_of(stream)))
    return "\n".join(parts)


def failure_line(failure: dict[str, Json]) -> str:
    """Reason, detail, and the excerpt it was read from."""
    words = [str(failure.get("reason", "?"))]
    if failure.get("detail"):
        words.append(str(failure["detail"]))
    line = ": ".join(words)
    if failure.get("evidence"):
        line += f" – {one_line(failure['evidence'])[:300]}"
    return line


def delegation_view(found: dict[str, Json], style: Style) -> str:
    """Everything about one delegation but its answer, then the answer."""
    at = now()
    state = str(found.get("state", "?"))
    pairs: list[tuple[str, object]] = [
        ("state", state),
        ("prompt", found.get("prompt")),
        ("directory", found.get("cwd")),
        ("session", found.get("session")),
        ("role", found.get("role")),
        ("requested", found.get("requested")),
        ("active", found.get("active")),
        ("served by", found.get("served_by")),
        ("tier", found.get("tier_served")),
        ("fallback", cause(found.get("fallback_reason") or "")),
        ("phase", found.get("phase")),
        ("waits for", found.get("blocked_by")),
        ("created", _instant(found.get("created_at"), at)),
        ("ended", _instant(found.get("ended_at"), at)),
        ("took", _took(found)),
        ("usage", usage_words(found.get("usage"))),
        ("retry at", _instant(found.get("retry_at"), at)),
        ("log", found.get("log_path")),
        ("window", _attach(found)),
    ]
    lines = [style.paint(f"delegation {found.get('delegation', '?')}", "bold")]
    lines += [f"  {name.ljust(10)} {one_line(value)}" for name, value in pairs if value]
    if isinstance(found.get("failure"), dict):
        lines.append(f"  failure    {failure_line(found['failure'])}")
    if found.get("attempts"):
        lines += ["", attempts_table(found["attempts"], style)]
    if found.get("hops"):
        lines += ["", *(hop_sentence(hop, found) for hop in found["hops"])]
    if found.get("candidates") and state != "succeeded":
        lines += ["", candidates_table(found["candidates"], style)]
    if isinstance(found.get("question"), dict):
        lines += ["", question_view(found["question"])]
    if found.get("text"):
        lines += ["", str(found["text"])]
    return "\n".join(lines)


def _attach(found: dict[str, Json]) -> str:
    window = found.get("tmux_window")
    return f"tmux attach -t {window}" if window else ""


def attempts_table(attempts: Sequence[Json], style: Style) -> str:
    rows = []
    for attempt in attempts:
        failure = attempt.get("failure")
        backend = str(attempt.get("backend", "?"))
        if attempt.get("model"):
            backend += f" [{attempt['model']}]"
        rows.append(
            [
                attempt.get("attempt", "?"),
                str(attempt.get("state", "?")) + (" (trial)" if attempt.get("trial") else ""),
                backend,
                _took(attempt, "started_at"),
                "" if attempt.get("exit_code") is None else attempt["exit_code"],
                _effects(attempt),
                failure_line(failure) if isinstance(failure, dict) else "",
            ]
        )
    return table(["ATTEMPT", "STATE", "BACKEND", "TOOK", "EXIT", "EFFECTS", "FAILURE"], rows, style)


def _effects(attempt: Json) -> str:
    word, outside = str(attempt.get("effects") or ""), attempt.get("outside")
    cut_off = attempt.get("unfinished") or ()
    shown = [f"{one_line(one)}{' (cut off)' if one in cut_off else ''}" for one in outside or ()]
    return f"{word}: {', '.join(shown)}" if shown else word


def question_view(question: dict[str, Json]) -> str:
    name = one_line(question.get("question", "?"))
    if question.get("choice"):
        return f"question {name}: {one_line(question.get('text', ''))}\n  {answered_line(question)}"
    lines = [f"a question is open ({name}): {one_line(question.get('text', ''))}"]
    if question.get("closed_at") is not None:
        lines = [f"question {name} was closed: {one_line(question.get('text', ''))}"]
        return "\n".join(lines)
    options = question.get("options") or []
    lines += [f"  {option.get('choice', '?')}: {option.get('text', '')}" for option in options]
    lines.append(f"  answer it: `fallbackd-client answer {name} CHOICE`")
    if question.get("deadline_at") is not None:
        lines.append(f"  until {when(question['deadline_at'], now())}")
    return "\n".join(lines)


def answered_line(question: dict[str, Json]) -> str:
    """Say which choice was made, by whom and when."""
    by = question.get("answered_by") or {}
    who = "" if by.get("uid") is None else f" by user {by['uid']}"
    pid = "" if by.get("pid") is None else f" (pid {by['pid']})"
    at = "" if question.get("answered_at") is None else f", {when(question['answered_at'], now())}"
    line = f"{one_line(question.get('question', '?'))}: {one_line(question.get('choice', '?'))}"
    note = f" – {one_line(question['note'])}" if question.get("note") else ""
    return f"{line}{who}{pid}{at}{note}"


def questions_view(questions: Sequence[Json], style: Style) -> str:
    if not questions:
        return "no open questions"
    return "\n\n".join(question_view(question) for question in questions)


def sessions_table(sessions: Sequence[Json], style: Style) -> str:
    at = now()
    rows = [
        [
            session.get("session", "?"),
            session.get("current") or "",
            session.get("original") or "",
            session.get("depth") or "",
            session.get("running") or "",
            _instant(session.get("last_fallback_at"), at),
        ]
        for session in sessions
    ]
    if not rows:
        return "no sessions"
    headers = ["SESSION", "CURRENT", "ORIGINAL", "DEPTH", "RUNNING", "LAST FALLBACK"]
    return table(headers, rows, style)


def session_view(session: dict[str, Json], style: Style) -> str:
    lines = [sessions_table([session], style)]
    if session.get("hops"):
        lines += ["", *(hop_sentence(hop, session) for hop in session["hops"])]
    for turn in session.get("turns") or []:
        lines += ["", *_turn_lines(turn)]
    if isinstance(own := session.get("conversation"), dict):
        lines += ["", f"{own.get('backend')} keeps it as {own.get('id')}"]
    if session.get("notices"):
        lines += ["", "announced: " + ", ".join(one_line(word) for word in session["notices"])]
    if session.get("ignored_reports"):
        lines.append(f"ignored reports: {session['ignored_reports']}")
    return "\n".join(lines)


def _turn_lines(turn: dict[str, Json]) -> list[str]:
    """A prompt and its answer, each as far as one line shows it."""
    at = "" if turn.get("ended_at") is None else f"{when(turn['ended_at'], now())}  "
    gone = "(not on record any more)"
    return [
        f"{at}{turn.get('backend') or '?'}  {turn.get('delegation')}",
        f"  > {one_line(turn.get('prompt') or gone)}",
        f"  {one_line(turn.get('answer') or gone)}",
    ]


def usage_table(rows: Sequence[Json], style: Style) -> str:
    """Show usage; a cap is shown beside what it counts."""
    cells = [
        [
            row.get("backend", "?"),
            row.get("period", "?"),
            row.get("session") or "",
            row.get("attempts", 0),
            row.get("failures", 0),
            row.get("input_tokens", 0),
            row.get("output_tokens", 0),
            "" if row.get("cost_usd") is None else f"{row['cost_usd']:.4f}",
            row.get("cost") or "",
            "" if row.get("cap") is None else f"{row['cap']:g} {row.get('unit') or ''}",
        ]
        for row in rows
    ]
    if not cells:
        return "nothing used"
    headers = [
        "BACKEND",
        "PERIOD",
        "SESSION",
        "ATTEMPTS",
        "FAILED",
        "IN",
        "OUT",
        "USD",
        "COST",
        "CAP",
    ]
    return table(headers, cells, style, coloured=len(headers))


def _instant(at: Json, now_at: float) -> str:
    return "" if at is None else when(at, now_at)


def _took(record: dict[str, Json], since: str = "created_at") -> str:
    start, end = record.get(since), record.get("ended_at")
    if start is None:
        return ""
    return duration((now() if end is None else end) - start)


def usage_words(usage: Json) -> str:
    if not isinstance(usage, dict):
        return ""
    read, written = usage.get("input_tokens") or 0, usage.get("output_tokens") or 0
    if not read and not written:
        return ""
    cost = usage.get("cost_usd")
    # The vectors of a few words cost a ten-millionth.
    shown = "" if cost is None else f", {cost:.{9 if 0 < cost < 0.0001 else 4}f} USD"
    return f"{read} tokens in, {written} out{shown}"


def standing_by(standby: dict[str, Json]) -> str:
    """Say for what it waits, and until when."""
    at, expects_at = time.time(), standby.get("expects_at")
    when = "a repair" if expects_at is None else clock(float(str(expects_at)), at)
    limit = clock(float(str(standby.get("limit_at") or at)), at)
    return f"on standby until {when} (at most until {limit})"
