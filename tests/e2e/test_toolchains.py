"""
Real build and signing tools, started by a confined agent of an ordinary user: in a home where no
program has run yet, and in one where each has.

Dependencies are made beside the project, so no registry is asked.
"""

import os
import subprocess
from pathlib import Path

import pytest
from tests.e2e.ordinary import CODE, NOBODY, SITE, own, python_of_all
from tests.support.agents import program
from tests.support.daemon import Daemon, running

AGENT = 'script=$(mktemp) && cat > "$script" && sh -e "$script" 2>&1 && echo ended well'
PATH = "/usr/local/bin:/usr/bin:/bin"

GIT = "git -c user.name=a -c user.email=a@example.invalid"
CARGO = f"""
git init -q dep
(cd dep && cargo init -q --lib --name dep --vcs none . && git add -A && {GIT} commit -qm 1)
cargo new -q --vcs none app
cd app
printf 'dep = {{ git = "file://%s" }}\n' "$(cd ../dep; pwd)" >> Cargo.toml
cargo build -q
"""
GO = """
mkdir -p proxy/x.test/m/@v app
cat > mk.py <<'PY'
import zipfile
with zipfile.ZipFile("proxy/x.test/m/@v/v1.0.0.zip", "w") as z:
    z.writestr("x.test/m@v1.0.0/go.mod", "module x.test/m\\n")
    z.writestr("x.test/m@v1.0.0/m.go", "package m\\nfunc F() {}\\n")
for name, text in (("v1.0.0.mod", "module x.test/m\\n"), ("v1.0.0.info", '{"Version":"v1.0.0"}')):
    open(f"proxy/x.test/m/@v/{name}", "w").write(text)
PY
python3 mk.py
cd app
printf 'module app\\ngo 1.18\\nrequire x.test/m v1.0.0\\n' > go.mod
printf 'package main\\nimport "x.test/m"\\nfunc main() { m.F() }\\n' > a.go
export GOFLAGS=-mod=mod GONOSUMDB='*' GONOSUMCHECK=1 GOPROXY="file://$(cd ../proxy; pwd)"
GOSUMDB=off go build -o a .
"""
MAVEN = """
mkdir -p repo/x/parent/1 app
cat > repo/x/parent/1/parent-1.pom <<'XML'
<project><modelVersion>4.0.0</modelVersion>
<groupId>x</groupId><artifactId>parent</artifactId><version>1</version><packaging>pom</packaging>
</project>
XML
cat > app/pom.xml <<XML
<project><modelVersion>4.0.0</modelVersion>
<parent><groupId>x</groupId><artifactId>parent</artifactId><version>1</version>
<relativePath/></parent><artifactId>app</artifactId><packaging>pom</packaging>
<repositories><repository><id>central</id><url>file://$(pwd)/repo</url></repository></repositories>
</project>
XML
cd app
MAVEN_OPTS="-Duser.home=$HOME" mvn -q validate
test -e "$HOME/.m2/repository/x/parent/1/parent-1.pom"
"""
NPM = """
mkdir dep app
echo '{"name":"dep","version":"1.0.0"}' > dep/package.json
(cd dep && npm pack --silent --offline)
cd app
echo '{"name":"app","version":"1.0.0"}' > package.json
npm install --offline --no-audit --no-fund ../dep/dep-1.0.0.tgz
test -e node_modules/dep/package.json
ls "$HOME/.npm/_cacache"
"""
PIP = f"""
cat > mk.py <<'PY'
import zipfile
info = "dep-1.0.dist-info"
with zipfile.ZipFile("dep-1.0-py3-none-any.whl", "w") as z:
    z.writestr("dep.py", "x = 1\\n")
    z.writestr(f"{{info}}/METADATA", "Metadata-Version: 2.1\\nName: dep\\nVersion: 1.0\\n")
    wheel = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    z.writestr(f"{{info}}/WHEEL", wheel)
    z.writestr(f"{{info}}/RECORD", "")
PY
python3 mk.py
PYTHONPATH={SITE} python3 -m pip install --no-index --find-links . --target lib dep
python3 -c 'import sys; sys.path.insert(0, "lib"); import dep'
# Where built and downloaded packages are kept.
mkdir -p "$(PYTHONPATH={SITE} python3 -m pip cache dir)/wheels/x"
"""
COMMIT = """
git init -q repo
cd repo
echo a > f
git add f
git commit -qm signed
git cat-file commit HEAD | grep -q '^gpgsig'
"""
GPG_CONFIG = "[user]\nname=T\nemail=t@example.invalid\n[commit]\ngpgsign=true\n"
SSH_CONFIG = f"{GPG_CONFIG}[gpg]\nformat=ssh\n[user]\nsigningkey=KEY\n"
TOOLS = {"cargo": CARGO, "go": GO, "maven": MAVEN, "npm": NPM, "pip": PIP}


def as_person(base: Path, daemon: Daemon, *command: str) -> None:
    """In their own shell, which is not confined."""
    env = {"HOME": str(daemon.home), "PATH": PATH, "XDG_RUNTIME_DIR": str(daemon.runtime_dir)}
    subprocess.run([*own(base), *command], env=env, cwd=daemon.home, check=True)


async def run(daemon: Daemon, script: str, where: str, *, permissions: str = "workspace") -> None:
    work = daemon.work_dir / where
    work.mkdir()
    if os.geteuid() == 0:
        os.chown(work, NOBODY, NOBODY)
    done = await daemon.client.call(
        "delegate",
        {
            "backend": "agent",
            "prompt": script,
            "cwd": str(work),
            "permissions": permissions,
            "wait": "finished",
            "failover": False,
        },
    )
    assert done["state"] == "succeeded", [one["failure"]["evidence"] for one in done["attempts"]]
    assert done["text"].endswith("ended well"), done["text"]


def config(base: Path) -> str:
    path = program(base / "bin", "agent", AGENT)
    return f'[backends.agent]\nkind = "generic-cli"\ncommand = ["{path}"]\n'


ENV = {"PATH": PATH, "PYTHONPATH": CODE}


@pytest.mark.parametrize("home", ["fresh", "used"])
@pytest.mark.parametrize("tool", TOOLS)
async def test_a_confined_agent_builds(base: Path, tool: str, home: str) -> None:
    async with running(base, config(base), env=ENV, wrapper=python_of_all(base)) as daemon:
        if home == "used":
            await run(daemon, TOOLS[tool], "before", permissions="full")
        await run(daemon, TOOLS[tool], "now")


@pytest.mark.parametrize("agent_runs", [True, False])
async def test_a_confined_agent_signs_commits_with_gpg(base: Path, agent_runs: bool) -> None:
    async with running(base, config(base), env=ENV, wrapper=python_of_all(base)) as daemon:
        (daemon.home / ".gitconfig").write_text(GPG_CONFIG)
        made = ("--quick-gen-key", "T <t@example.invalid>", "default", "default", "never")
        as_person(base, daemon, "gpg", "--batch", "--quiet", "--passphrase", "", *made)
        try:
            if not agent_runs:
                as_person(base, daemon, "gpgconf", "--kill", "all")
            await run(daemon, COMMIT, "now")
        finally:
            as_person(base, daemon, "gpgconf", "--kill", "all")


@pytest.mark.parametrize("has_cache", [True, False])
async def test_a_confined_agent_signs_commits_with_ssh(base: Path, has_cache: bool) -> None:
    async with running(base, config(base), env=ENV, wrapper=python_of_all(base)) as daemon:
        key = daemon.home / "key"
        (daemon.home / ".gitconfig").write_text(SSH_CONFIG.replace("KEY", f"{key}.pub"))
        if has_cache:
            (daemon.home / ".cache").mkdir()
        as_person(base, daemon, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        await run(daemon, COMMIT, "now")
