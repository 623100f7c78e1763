"""`metrics`: text for Prometheus."""

from tests.client.conftest import RunCli

STATUS = {
    "daemon": {},
    "health": {
        "codex": {
            "state": "rate_limited",
            "until_at": 1767272400.5,
            "limits": [
                {"window_s": 18000.0, "used_percent": 63.0, "unit": "percent", "fresh": True},
                {"window_s": 604800.0, "used_percent": 41.0, "unit": "percent", "fresh": False},
            ],
        },
        'a"b\\c': {"state": "healthy"},
    },
    "delegations": {"running": 2, "by_state": {"succeeded": 12}},
}
USED = [
    {"backend": "codex", "period": "hour", "successes": 1},
    {
        "backend": "codex",
        "period": "total",
        "successes": 7,
        "failures": 2,
        "input_tokens": 12345678901,
        "output_tokens": 20,
        "cost_usd": 0.25,
    },
]


def test_backends_and_work_are_samples_with_their_type(run_cli: RunCli) -> None:
    out = run_cli(["metrics"], {"status": STATUS, "usage": {"usage": USED}}).out
    lines = out.splitlines()
    for wanted in (
        "fallbackd_up 1",
        'fallbackd_backend_state{backend="codex",state="rate_limited"} 1',
        'fallbackd_backend_state{backend="codex",state="healthy"} 0',
        'fallbackd_backend_unavailable_until_seconds{backend="codex"} 1767272400.5',
        'fallbackd_attempts_total{backend="codex",outcome="succeeded"} 7',
        'fallbackd_tokens_total{backend="codex",kind="input"} 12345678901',
        'fallbackd_cost_usd_total{backend="codex"} 0.25',
        'fallbackd_delegations{state="running"} 2',
        'fallbackd_delegations_kept{state="succeeded"} 12',
        "# TYPE fallbackd_attempts_total counter",
    ):
        assert wanted in lines
    assert out.endswith("\n")


def test_only_fresh_figures_of_plans_are_samples(run_cli: RunCli) -> None:
    out = run_cli(["metrics"], {"status": STATUS, "usage": {"usage": USED}}).out
    assert [one for one in out.splitlines() if one.startswith("fallbackd_plan_used_ratio")] == [
        'fallbackd_plan_used_ratio{backend="codex",window_seconds="18000",unit="percent",'
        'model="",credential=""} 0.63'
    ]


def test_names_are_escaped_and_each_metric_is_described_once(run_cli: RunCli) -> None:
    out = run_cli(["metrics"], {"status": STATUS, "usage": {"usage": USED}}).out
    assert '{backend="a\\"b\\\\c",state="healthy"} 1' in out
    described = [one.split()[2] for one in out.splitlines() if one.startswith("# HELP")]
    assert len(described) == len(set(described))


def test_a_daemon_that_has_done_nothing_yet_has_no_empty_metric(run_cli: RunCli) -> None:
    ran = run_cli(["metrics"], {"status": {"daemon": {}}, "usage": {"usage": []}})
    assert "fallbackd_cost_usd_total" not in ran.out
    assert ran.code == 0
