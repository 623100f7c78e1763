"""Every failpoint of the source, and at which of its hits a daemon under load is ended there."""

DAEMON: dict[str, tuple[int, ...]] = {
    "answer.before": (2,),
    "answer.kept": (3,),
    "answer.written": (2,),
    "attempt.attach.after": (1, 2),
    "attempt.attach.before": (1,),
    "attempt.chunk": (1, 7),
    "attempt.directory": (2,),
    "attempt.ended.after": (2,),
    "attempt.ended.before": (2,),
    "attempt.open.after": (3,),
    "attempt.open.before": (3,),
    "attempt.started": (2,),
    "config.before": (1,),
    "config.taken": (1,),
    "config.told.before": (1,),
    "delegation.resumed": (1,),
    "effect.answer": (3,),
    "effect.export": (1,),
    "effect.start_attempt": (3,),
    "effect.stop_attempt": (1,),
    "effect.wake_at": (2,),
    "effect.wake_waiting": (1,),
    "event.done": (9,),
    "event.kept": (14,),
    "export.after": (1,),
    "export.before": (2,),
    "fence.claimed": (1,),
    "file.replaced": (1,),
    "file.written": (2,),
    "import.taken": (1,),
    "journal.kept": (11,),
    "order.before": (2,),
    "order.sent": (3,),
    "reply.after": (3, 17),
    "reply.before": (5, 23),
    "run.directory": (3,),
    "run.prompt": (2,),
    "run.record": (3,),
    "store.acknowledged": (13,),
    "store.commit.after": (16,),
    "store.commit.before": (8,),
    "store.commit.within": (1, 12),
    "store.fact.after": (1,),
    "store.fact.before": (1,),
    "store.migration.within": (1,),
    "store.opening.within": (1,),
    "store.prune.after": (1,),
    "store.prune.within": (1,),
    "store.prune_journal.after": (1,),
    "store.prune_journal.within": (1,),
    "tick.done": (2,),
    "tick.pruned": (1,),
}
"""The daemon itself ends there. Hits are counted from its start."""

FIRST_START = frozenset({"store.migration.within"})
"""Reached only where there is no database yet."""

AFTER = {
    "attempt.attach.after": "attempt.chunk",
    "attempt.attach.before": "attempt.chunk",
    "delegation.resumed": "attempt.chunk",
    "fence.claimed": "order.before",
}
"""Reached only by a daemon that comes after one that ended at that other point."""

RUNNER: dict[str, tuple[int, ...]] = {
    "runner.claim.within": (1,),
    "runner.claimed": (1,),
    "runner.ended": (1,),
    "runner.exit.after": (1,),
    "runner.exit.before": (1,),
    "runner.known": (1,),
    "runner.met": (1,),
    "runner.record.within": (1, 2),
    "runner.started": (1,),
}
"""One runner ends there, and right after it the daemon. Every runner counts for itself."""

MEETING = frozenset({"runner.met"})
"""Reached only by a runner whose daemon is gone, when the next one comes."""

SERVED: dict[str, tuple[int, ...]] = {
    "served.opened": (1,),
    "served.leased": (1,),
    "served.settled": (1,),
    "served.session": (1,),
    "served.written": (1,),
    "served.posting": (1,),
    "served.posted": (1,),
}
"""In the order in which a prompt reaches a real opencode server, which only tests/e2e has."""

RESIDENT: dict[str, tuple[int, ...]] = {
    "resident.opened": (2,),
    "resident.sending": (2,),
    "resident.sent": (1,),
}
"""Reached only where programs may stay after a prompt: `tests/e2e/test_residents.py`."""

NOTIFY: dict[str, tuple[int, ...]] = {"notify.started": (1,), "notify.posted": (1,)}
"""Reached only where notifications are configured: `tests/acceptance/test_notify.py`."""

POINTS = {**DAEMON, **RUNNER, **SERVED, **RESIDENT, **NOTIFY}
