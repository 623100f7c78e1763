# Two commands do everything on a machine with Python 3.11+, make and git:
#   make demo    the main job, told as a story, in less than a minute
#   make test    the tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test check e2e e2e-newest e2e-opencode2 soak bench bench-gateway weights docs completions fmt lock release clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(READY) ## make the virtual environment from the locked requirements

$(READY): requirements/dev.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fallbackd needs Python 3.11 or newer; run: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: .venv-demo/.ready ## a real daemon, real processes: claude at its plan limit, codex, and a person who looks
	@.venv-demo/bin/python contrib/demo/demo.py

# What the daemon runs on and nothing else: no tools of development, no build.
.venv-demo/.ready: requirements/run.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fallbackd needs Python 3.11 or newer; run: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements/run.txt
	@touch $@

test: $(READY) ## the tests; TESTS="PATH ..." runs a part of them
	$(BIN)/python -m pytest -n 4 --dist worksteal $(TESTS)

check: $(READY) ## lint, types, layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

e2e: $(READY) .venv-docs/.ready .venv-mcp/.ready .venv-sdk/.ready .venv-packages/.ready ## the real agent CLIs, shells and user manager (needs node, npm, redis-server, zsh, fish, systemd, cargo, go, maven, gpg, debootstrap, chromium, root)
	$(BIN)/python -m tests.e2e.install
	$(E2E) tests/e2e

NEWEST := attempts clis_alone failover gateway_clients mcp mcp_agents planted plans_asked real_clis takeover
# They wait more than they work. No test of them is slow before half an hour.
E2E := $(BIN)/python -m pytest --override-ini='norecursedirs=.*' --timeout=1800 -n 4 --dist loadfile --no-loadscope-reorder --durations=25

e2e-newest: export FALLBACKD_E2E = newest
e2e-newest: $(READY) .venv-mcp/.ready .venv-sdk/.ready ## the same agent CLIs in their newest versions, which the parsers may not know yet
	$(BIN)/python -m tests.e2e.install
	$(E2E) $(NEWEST:%=tests/e2e/test_%.py)

e2e-opencode2: $(READY) ## a delegation and a rescue with the opencode 2 at OPENCODE=/path/to/opencode
	$(BIN)/python -m pytest --override-ini='norecursedirs=.*' --timeout=600 -n 0 tests/e2e/opencode2.py

soak: $(READY) ## killed, fuzzed and simulated for SOAK_S seconds (1800; needs root)
	$(BIN)/python -m tests.soak

bench: $(READY) ## speed, as ratios measured in one run; how well the classifier does on what it has not seen
	$(BIN)/python -m tests.benchmarks

bench-gateway: $(READY) .venv-peers/.ready ## the gateway beside LiteLLM's proxy, Portkey's and claude-code-router, where they install (800 MB, needs node and npm)
	$(BIN)/python -m tests.benchmarks.gateway_peers

# Not locked: their newest versions are what ours is compared with. One that does not install is left out.
.venv-peers/.ready:
	$(PYTHON) -m venv .venv-peers
	-.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check 'litellm[proxy]'
	-npm install --prefix .venv-peers --silent --no-audit --no-fund @portkey-ai/gateway @musistudio/claude-code-router
	@touch $@

weights: .venv-weights/.ready ## train the classifier anew; LABELLED="FILE …" makes the rows from these, and measures
	PYTHONPATH=daemon:client:. OMP_NUM_THREADS=1 .venv-weights/bin/python -m contrib.weights.train $(LABELLED)

.venv-weights/.ready: requirements/weights.txt
	$(PYTHON) -m venv .venv-weights
	.venv-weights/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/weights.txt
	@touch $@

docs: $(READY) .venv-docs/.ready ## the site in build/docs/site and the man pages in build/docs/man
	$(BIN)/python -m contrib.docs build/docs
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet --config-file build/docs/mkdocs.yml
	@echo "build/docs/site/index.html, build/docs/man"

.venv-docs/.ready: requirements/docs.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

.venv-mcp/.ready: requirements/mcp.txt
	$(PYTHON) -m venv .venv-mcp
	.venv-mcp/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/mcp.txt
	@touch $@

.venv-sdk/.ready: requirements/sdk.txt
	$(PYTHON) -m venv .venv-sdk
	.venv-sdk/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/sdk.txt
	@touch $@

.venv-packages/.ready: requirements/packages.txt
	$(PYTHON) -m venv .venv-packages
	.venv-packages/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/packages.txt
	@touch $@

completions: $(READY) ## the completions for shells in build/completions, for packages
	@mkdir -p build/completions
	$(BIN)/fallbackd-client completions bash > build/completions/fallbackd-client.bash
	$(BIN)/fallbackd-client completions fish > build/completions/fallbackd-client.fish
	$(BIN)/fallbackd-client completions zsh > build/completions/_fallbackd-client

fmt: $(READY) ## format, and fix what the linter can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lock: $(READY) ## resolve the requirements anew
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet pyproject.toml --output-file requirements/run.txt
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet --extra share pyproject.toml --output-file requirements/share.txt
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet --group dev pyproject.toml --output-file requirements/dev.txt
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet --group weights pyproject.toml --output-file requirements/weights.txt
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet --group pyproject.toml:docs --output-file requirements/docs.txt
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet --group pyproject.toml:mcp --output-file requirements/mcp.txt
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet --group pyproject.toml:sdk --output-file requirements/sdk.txt
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet --group pyproject.toml:packages --output-file requirements/packages.txt

release: check ## build the packages, install them in a clean place, print what to publish
	rm -rf dist build/release build/release-client
	$(BIN)/python -m contrib.packages dist $(if $(shell command -v dpkg-deb),--deb)
	$(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/run.txt
	build/release/bin/python -m pip install --quiet --disable-pip-version-check --no-deps dist/fallbackd-*.whl
	$(PYTHON) -m venv build/release-client
	build/release-client/bin/python -m pip install --quiet --disable-pip-version-check dist/fallbackd_client-*.whl
	build/release/bin/fallbackd --version
	build/release/bin/fb --version
	build/release-client/bin/fb --version
	@cd dist && sha256sum *
	@echo "Publish: git tag v$$($(BIN)/python -m hatchling version) && git push --tags; then upload the files of dist/."

clean: ## remove what the targets have made
	rm -rf $(VENV) .venv-weights .venv-docs .venv-mcp .venv-sdk .venv-packages .venv-demo build .e2e .e2e-agents .e2e-newest dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
