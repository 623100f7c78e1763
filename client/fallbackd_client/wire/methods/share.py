"""Health shared with other machines."""

from msgspec import Struct

from fallbackd_client.wire.envelope import Method


class SharingMachine(Struct, frozen=True, kw_only=True):
    """A machine of the group."""

    name: str
    """Its name."""
    version: str = ""
    """Its version of fallbackd."""
    pid: int = 0
    """Process id of its daemon."""
    seen_ago_s: float = 0.0
    """How long ago it was last seen; a daemon that runs says so every 30 s."""


class Sharing(Struct, frozen=True, kw_only=True):
    """The sharing of health with other machines."""

    state: str
    """connecting, connected, unreachable, slow, full, refused or off."""
    group: str
    """Name of the group."""
    machine: str
    """Name of this machine."""
    since_at: float | None = None
    """When the state began."""
    problem: str | None = None
    """Why it is not connected, and what to do."""
    warning: str | None = None
    """What is risky in how it is set up."""
    machines: int = 0
    """Machines seen within the last 90 s, this one included."""
    offset_ms: float | None = None
    """By how much the server's clock is ahead of this machine's."""
    outbox: int = 0
    """Scopes whose latest health the server does not have yet."""
    ignored: tuple[str, ...] = ()
    """Records of the server that could not be used, and why."""
    advice: tuple[str, ...] = ()
    """Providers that other machines cannot reach either."""
    arbiter_away: bool = False
    """No server grants probes now; machines that are cut off take turns of a minute."""
    alone_at: float | None = None
    """When the last probe began that no server had granted."""
    alone_scopes: tuple[str, ...] = ()
    """Scopes of that probe."""


class ShareStatusParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class ShareStatusResult(Struct, frozen=True, kw_only=True):
    share: Sharing | None = None
    """Null: nothing is shared."""
    machines: tuple[SharingMachine, ...] = ()
    """Machines of the group, last seen first."""
    scopes: tuple[str, ...] = ()
    """Scopes of this machine whose health is shared."""


SHARE_STATUS: Method[ShareStatusParams, ShareStatusResult] = Method(
    "share.status",
    params=ShareStatusParams,
    result=ShareStatusResult,
    read_only=True,
    who="person",
    summary="How health is shared with other machines, and which ones there are.",
    example=(
        {},
        {
            "share": {"state": "connected", "group": "home", "machine": "laptop", "outbox": 0},
            "machines": [{"name": "desktop", "version": "0.2.0", "seen_ago_s": 12.0}],
            "scopes": ["quota:chatgpt-plan"],
        },
    ),
)


class ShareTestParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class ShareTestStep(Struct, frozen=True, kw_only=True):
    step: str
    """configuration, read or lease."""
    ok: bool
    """Whether it worked."""
    detail: str = ""
    """What was found, or what is wrong."""
    took_s: float = 0.0
    """How long it took."""


class ShareTestResult(Struct, frozen=True, kw_only=True):
    steps: tuple[ShareTestStep, ...] = ()
    """Steps up to the first that failed; empty: nothing is shared."""


SHARE_TEST: Method[ShareTestParams, ShareTestResult] = Method(
    "share.test",
    params=ShareTestParams,
    result=ShareTestResult,
    read_only=False,
    who="person",
    promises="nothing",
    errors=("draining",),
    summary="Try the connection to the server that shares health.",
    example=({}, {"steps": [{"step": "read", "ok": True, "took_s": 0.002}]}),
)


METHODS = (SHARE_STATUS, SHARE_TEST)
