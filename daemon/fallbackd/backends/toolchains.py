"""
Build tools and signing tools: what each writes in the home, as data.

Any agent runs them, so every confined agent may write there at `workspace`. A row names caches and
locks, and leaves out what a person's own shell runs or obeys later: settings, programs that were
installed (`~/.cargo/bin`, `~/go/bin`, `~/.local/bin`), scripts that a tool loads by itself
(`~/.gradle/init.d`). The exception is gpg: its home cannot be opened in part, so the settings in it
(`gpg-agent.conf`) are writable too.

Places are as `lib.directories` has them. Those of a tool that is installed, or that the working
directory asks for, are made where they are missing, since the kernel allows nothing below a
directory that is not there yet.
"""

from fallbackd.core.protocol import OwnCopy, Toolchain

_CACHE = "${XDG_CACHE_HOME:-~/.cache}"
_DATA = "${XDG_DATA_HOME:-~/.local/share}"


CACHES = {
    "XDG_CACHE_HOME": _CACHE,
    "npm_config_cache": "${npm_config_cache:-~/.npm}",
    "PRE_COMMIT_HOME": "${PRE_COMMIT_HOME:--}",
}
"""
Directories for caches, by the variable that moves them. They hold programs that are run later, so
a confined program has its own, and writes at most what the rows below name.
"""
_CARGO = "${CARGO_HOME:-~/.cargo}"
_GO = "${GOPATH:-~/go}"
_GRADLE = "${GRADLE_USER_HOME:-~/.gradle}"
_MAVEN = "${MAVEN_USER_HOME:-~/.m2}"

TOOLCHAINS = (
    Toolchain(
        name="cargo",
        programs=("cargo",),
        signs=("Cargo.toml",),
        writes=(f"{_CARGO}/registry/", f"{_CARGO}/git/"),
        files=tuple(
            f"{_CARGO}/{name}"
            for name in (".package-cache", ".package-cache-mutate", ".global-cache")
        ),
        refused="cargo install, rustup",
    ),
    Toolchain(
        name="go",
        programs=("go",),
        signs=("go.mod", "go.work"),
        # A list of directories in GOPATH is none of these: GOMODCACHE says where modules go.
        writes=(
            f"{_GO}/pkg/",
            f"${{GOMODCACHE:-{_GO}/pkg/mod}}/",
            f"${{GOCACHE:-{_CACHE}/go-build}}/",
        ),
        refused="go install, go env -w",
    ),
    Toolchain(
        name="gradle",
        programs=("gradle",),
        signs=("gradlew", "build.gradle", "build.gradle.kts", "settings.gradle.kts"),
        writes=tuple(
            f"{_GRADLE}/{name}/"
            for name in (
                *(".tmp", "android", "build-scan-data", "caches", "daemon", "jdks", "kotlin"),
                *("kotlin-profile", "native", "notifications", "workers", "wrapper"),
            )
        ),
    ),
    Toolchain(
        name="maven",
        programs=("mvn", "mvnd"),
        signs=("pom.xml", "mvnw"),
        writes=("~/.m2/repository/", "~/.m2/build-cache/", f"{_MAVEN}/wrapper/"),
    ),
    Toolchain(
        name="sbt",
        programs=("sbt", "cs"),
        signs=("build.sbt",),
        writes=(f"${{COURSIER_CACHE:-{_CACHE}/coursier}}/", "~/.ivy2/cache/", "~/.sbt/boot/"),
    ),
    Toolchain(
        name="npm",
        programs=("npm",),
        signs=("package-lock.json",),
        writes=("${npm_config_cache:-~/.npm}/_cacache/",),
        refused="npm install -g",
    ),
    Toolchain(
        name="yarn",
        programs=("yarn",),
        signs=("yarn.lock",),
        writes=(
            f"${{YARN_CACHE_FOLDER:-{_CACHE}/yarn}}/",
            "${YARN_GLOBAL_FOLDER:-~/.yarn/berry}/",
        ),
        refused="yarn global add",
    ),
    Toolchain(
        name="pnpm",
        programs=("pnpm",),
        signs=("pnpm-lock.yaml",),
        writes=(
            f"${{PNPM_HOME:-{_DATA}/pnpm}}/store/",
            f"${{npm_config_store_dir:-{_DATA}/pnpm/store}}/",
            "${XDG_STATE_HOME:-~/.local/state}/pnpm/",
        ),
        refused="pnpm add -g",
    ),
    Toolchain(
        name="bun",
        programs=("bun",),
        signs=("bun.lock", "bun.lockb"),
        writes=("${BUN_INSTALL_CACHE_DIR:-${BUN_INSTALL:-~/.bun}/install/cache}/",),
        refused="bun add -g",
    ),
    Toolchain(
        name="deno",
        programs=("deno",),
        signs=("deno.json", "deno.jsonc", "deno.lock"),
        writes=(f"${{DENO_DIR:-{_CACHE}/deno}}/",),
        refused="deno install -g",
    ),
    Toolchain(
        name="pip",
        programs=("pip", "pip3"),
        signs=("requirements.txt",),
        writes=(f"${{PIP_CACHE_DIR:-{_CACHE}/pip}}/",),
        refused="pip install --user, pipx",
    ),
    Toolchain(
        name="uv",
        programs=("uv",),
        signs=("uv.lock",),
        writes=(f"${{UV_CACHE_DIR:-{_CACHE}/uv}}/",),
        refused="uv tool install, uv python install",
    ),
    Toolchain(
        name="poetry",
        programs=("poetry",),
        signs=("poetry.lock",),
        writes=tuple(
            f"${{POETRY_CACHE_DIR:-{_CACHE}/pypoetry}}/{name}/" for name in ("artifacts", "cache")
        ),
    ),
    Toolchain(
        name="bundler",
        programs=("bundle",),
        signs=("Gemfile.lock",),
        writes=("${BUNDLE_USER_CACHE:-~/.bundle/cache}/",),
        refused="gem install",
    ),
    Toolchain(
        name="composer",
        programs=("composer",),
        signs=("composer.json",),
        writes=(f"${{COMPOSER_CACHE_DIR:-{_CACHE}/composer}}/",),
        refused="composer global require",
    ),
    Toolchain(
        name="nuget",
        programs=("dotnet",),
        signs=("global.json", "Directory.Build.props"),
        writes=("${NUGET_PACKAGES:-~/.nuget/packages}/", f"{_DATA}/NuGet/"),
        refused="dotnet tool install -g",
    ),
    Toolchain(
        name="docker buildx",
        programs=("docker",),
        signs=("Dockerfile", "compose.yaml", "docker-compose.yml", "docker-bake.hcl"),
        writes=("${BUILDX_CONFIG:-${DOCKER_CONFIG:-~/.docker}/buildx}/",),
        refused="docker login",
    ),
    Toolchain(
        name="ccache",
        programs=("ccache", "sccache"),
        writes=(
            f"${{CCACHE_DIR:-{_CACHE}/ccache}}/",
            f"${{SCCACHE_DIR:-{_CACHE}/sccache}}/",
        ),
    ),
    Toolchain(
        name="gpg",
        programs=("gpg",),
        # It locks its home for each signature, and starts its agent, which listens in one of these.
        writes=("${GNUPGHOME:-~/.gnupg}/", "${XDG_RUNTIME_DIR:--}/gnupg/"),
    ),
)
"""
ssh-agent needs no row: a socket is asked, not written to. What makes its temporary files in TMPDIR
(ssh-keygen for signatures, tmux) is covered by that of the attempt.
"""


def own_caches(*, shared: bool) -> tuple[OwnCopy, ...]:
    """
    Args:
        shared: Build tools go on with those of the user; else they begin anew.
    """
    tools = tuple(place for each in TOOLCHAINS for place in each.writes)
    return tuple(
        OwnCopy(
            variable=variable,
            place=place,
            shared=tools if shared else (),
            fresh=() if shared else tools,
        )
        for variable, place in CACHES.items()
    )
