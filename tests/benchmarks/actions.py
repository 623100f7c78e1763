"""What a verdict leads to, which counts for people more than its name."""

_BY_ACTION = {
    "short wait": (
        "rate_limit overloaded server_error network local_network timeout stalled crash unknown"
        " empty_result"
    ),
    "long wait": "usage_limit billing",
    "a person": (
        "manual auth not_configured not_installed permission tls provider_policy approval_required"
    ),
    "the request": (
        "context_overflow payload_too_large format_error content_policy model_not_found session"
    ),
    "the task": "task_failed cancelled local_budget",
    "none": "benign",
}
ACTIONS = {reason: action for action, words in _BY_ACTION.items() for reason in words.split()}


def is_right_action(reason: str, label: str, also_ok: list[str]) -> bool:
    return ACTIONS[reason] in {ACTIONS[one] for one in (label, *also_ok)}
