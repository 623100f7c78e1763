"""
The shape of the database through its versions.

Records are JSON in a BLOB. Where their own shape changes so that `codec` cannot read the old one,
SQLite rewrites them; one that is not JSON stays as it is, and is put aside when it is read.
"""


def _rewritten(table: str, path: str, becomes: str, *, kind: str) -> str:
    """A statement that rewrites the records whose `path` is of this kind; `r` is the record."""
    return (
        f"UPDATE {table} SET record = (SELECT CAST({becomes} AS BLOB) FROM"  # noqa: S608 - our own words
        " (SELECT CAST(record AS TEXT) AS r))"
        " WHERE CASE WHEN json_valid(CAST(record AS TEXT))"
        f" THEN json_type(CAST(record AS TEXT), '{path}') = '{kind}' END"
    )


def _array(name: str) -> str:
    return f"json(coalesce(json_extract(r, '$.{name}'), '[]'))"


def _flag(name: str, default: int) -> str:
    return f"json(iif(coalesce(json_extract(r, '$.{name}'), {default}), 'true', 'false'))"


_TURN_OF_DELEGATION = (
    f"'candidates', {_array('candidates')}, 'role', json_extract(r, '$.role'),"
    f" 'creative', {_flag('creative', 0)},"
    " 'on_outage', coalesce(json_extract(r, '$.on_outage'), 'fallback'),"
    f" 'allow_metered', {_flag('allow_metered', 1)}, 'differs_from', {_array('differs_from')},"
    " 'fallback_on', json(coalesce(json_extract(r, '$.fallback_on'), 'null')),"
    " 'max_hops', coalesce(json_extract(r, '$.max_hops'), 3),"
    " 'budget', coalesce(json_extract(r, '$.budget'), 8),"
    " 'prompt_tokens', json_extract(r, '$.prompt_tokens'),"
    f" 'inherited_tried', {_array('inherited_tried')}, 'marks', {_array('marks')}"
)
_MOVED_INTO_TURN = ", ".join(
    f"'$.{name}'"
    for name in (
        "candidates", "creative", "on_outage", "allow_metered", "differs_from", "fallback_on",
        "max_hops", "budget", "prompt_tokens", "inherited_tried", "marks",
    )
)  # fmt: skip
_MESSAGE = (
    "json_remove(json_set(json_extract(r, '$.turn'), '$.id', json_extract(r, '$.turn.message'),"
    " '$.turn', json(coalesce(json_extract(r, '$.turn.failover'), 'null'))),"
    " '$.message', '$.failover')"
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE health (scope TEXT PRIMARY KEY, record BLOB NOT NULL)",
        "CREATE TABLE meters (backend TEXT PRIMARY KEY, record BLOB NOT NULL)",
        "CREATE TABLE sessions (session TEXT PRIMARY KEY, record BLOB NOT NULL)",
        "CREATE TABLE delegations (delegation TEXT PRIMARY KEY, session TEXT NOT NULL,"
        " state TEXT NOT NULL, is_ended INTEGER NOT NULL, request_id TEXT,"
        " created_at REAL NOT NULL, ended_at REAL, record BLOB NOT NULL)",
        "CREATE INDEX delegations_by_age ON delegations (created_at, delegation)",
        "CREATE INDEX delegations_by_session ON delegations (session, created_at, delegation)",
        "CREATE INDEX delegations_by_state ON delegations (state, created_at, delegation)",
        "CREATE INDEX delegations_by_request ON delegations (request_id, created_at, delegation)"
        " WHERE request_id IS NOT NULL",
        "CREATE INDEX delegations_unfinished ON delegations (created_at) WHERE is_ended = 0",
        "CREATE INDEX delegations_by_end ON delegations (ended_at) WHERE is_ended = 1",
        "CREATE TABLE stories (place INTEGER PRIMARY KEY, delegation TEXT NOT NULL,"
        " record BLOB NOT NULL)",
        "CREATE INDEX stories_by_delegation ON stories (delegation, place)",
        "CREATE TABLE journal (seq INTEGER PRIMARY KEY, at REAL NOT NULL, record BLOB NOT NULL)",
        "CREATE TABLE finished (state TEXT PRIMARY KEY, count INTEGER NOT NULL)",
        "CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
        # Records that could not be read: taken out of the way, kept for people.
        "CREATE TABLE damaged (kind TEXT NOT NULL, key TEXT NOT NULL, record BLOB)",
    ),
    (
        # What was asked of a chain and what was tried is one record, `turn`, wherever it is kept.
        _rewritten(
            "delegations",
            "$.candidates",
            f"json_set(json_remove(r, {_MOVED_INTO_TURN}),"
            f" '$.turn', json_object({_TURN_OF_DELEGATION}))",
            kind="array",
        ),
        _rewritten(
            "sessions",
            "$.turn",
            f"json_set(json_remove(r, '$.turn'), '$.message', json({_MESSAGE}))",
            kind="object",
        ),
        *(
            _rewritten(
                "sessions",
                f"$.{place}failover",
                f"json_set(json_remove(r, '$.{place}failover'),"
                f" '$.{place}turn', json(json_extract(r, '$.{place}failover')))",
                kind="object",
            )
            for place in ("", "rescue.")
        ),
    ),
)
"""The n-th brings a database of version n to version n + 1; 0 is an empty file."""

SCHEMA_VERSION = len(MIGRATIONS)
