"""
Variables of the daemon's environment that programs are given, as data.

A program is given what the rows here name, what its kind names (`BackendKind.variables`), and what
`allow_env` of its backend names; `env` of the configuration and of a request is set on top. All
else stays with the daemon. A name with a `*` at its end stands for all that begin so, but in these
rows never for one that speaks of a secret.
"""

import re
from collections.abc import Iterable

from fallbackd.backends.toolchains import TOOLCHAINS
from fallbackd.lib.directories import variables_in
from fallbackd.lib.secretvalues import is_name_of_secret

_NEEDED = {
    "who runs it and where": """
        PATH HOME USER LOGNAME USERNAME SHELL HOSTNAME MAIL TMPDIR TEMP TMP XDG_* TZ TZDIR CI
        FALLBACKD_SOCKET WSL_* WSLENV DEBIAN_FRONTEND container
    """,
    "how it reads and prints text": """
        LANG LANGUAGE LC_* LOCALE_ARCHIVE LOCPATH TERM TERM_* TERMINFO* COLORTERM COLORFGBG
        NO_COLOR FORCE_COLOR CLICOLOR* LS_COLORS COLUMNS LINES PAGER LESS EDITOR VISUAL MANPATH
        INFOPATH RIPGREP_CONFIG_PATH BASH_ENV ENV TMUX TMUX_PANE TMUX_TMPDIR
    """,
    "sockets by which a user's session is asked to sign or to show something": """
        SSH_AUTH_SOCK SSH_AGENT_PID SSH_ASKPASS* GPG_TTY GPG_AGENT_INFO DBUS_SESSION_BUS_ADDRESS
        KRB5CCNAME KRB5_CONFIG PULSE_SERVER DISPLAY WAYLAND_* XAUTHORITY DESKTOP_SESSION GDK_*
        GTK_* QT_* LIBGL_* MESA_* VK_* BROWSER CHROME_* CHROMIUM_* FIREFOX_* PUPPETEER_*
        PLAYWRIGHT_* SE_* DOCKER_HOST DOCKER_CONTEXT DOCKER_CONFIG DOCKER_BUILDKIT
        DOCKER_DEFAULT_PLATFORM DOCKER_CERT_PATH DOCKER_TLS_VERIFY CONTAINER_HOST COMPOSE_*
        BUILDKIT_*
    """,
    "the way out of the machine, and whom to trust on it": """
        HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY FTP_PROXY http_proxy https_proxy all_proxy
        no_proxy ftp_proxy SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
        CURL_HOME OPENSSL_CONF OPENSSL_MODULES RES_OPTIONS LOCALDOMAIN HOSTALIASES
    """,
    "git and its relatives": """
        GIT_AUTHOR_* GIT_COMMITTER_* EMAIL GIT_SSH* GIT_SSL_* GIT_HTTP_* GIT_ASKPASS GIT_EDITOR
        GIT_SEQUENCE_EDITOR GIT_PAGER GIT_TRACE* GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM
        GIT_CONFIG_NOSYSTEM GIT_LFS_* GIT_TERMINAL_PROMPT GIT_EXEC_PATH GIT_TEMPLATE_DIR
        GIT_CEILING_DIRECTORIES GIT_DISCOVERY_ACROSS_FILESYSTEM GIT_PROXY_COMMAND
        GIT_ALLOW_PROTOCOL GIT_MERGE_AUTOEDIT GIT_DEFAULT_HASH HGRCPATH JJ_CONFIG GH_HOST
        GH_CONFIG_DIR GH_REPO GLAB_CONFIG_DIR
    """,
    "places and profiles of cloud tools, whose keys are in files": """
        AWS_PROFILE AWS_REGION AWS_DEFAULT_REGION AWS_CONFIG_FILE AWS_SDK_*
        AWS_SHARED_CREDENTIALS_FILE AWS_PAGER AZURE_CONFIG_DIR CLOUDSDK_CONFIG
        CLOUDSDK_ACTIVE_CONFIG_NAME CLOUDSDK_CORE_PROJECT GOOGLE_CLOUD_PROJECT
        GOOGLE_APPLICATION_CREDENTIALS KUBECONFIG HELM_* TF_CLI_CONFIG_FILE TF_DATA_DIR
        TF_PLUGIN_CACHE_DIR ANSIBLE_CONFIG
    """,
    "libraries and compilers": """
        LD_* LIBRARY_PATH CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH PKG_CONFIG* CC CXX AR CFLAGS
        CXXFLAGS CPPFLAGS LDFLAGS MAKEFLAGS CMAKE_* NINJA_STATUS ACLOCAL_PATH MALLOC_*
        GLIBC_TUNABLES CUDA_* NVIDIA_* HIP_* ROCM_* OMP_* MKL_* OPENBLAS_* ROCR_* NIX_*
        NIXPKGS_* IN_NIX_SHELL GUIX_* HOMEBREW_* ASDF_* MISE_* CCACHE_* SCCACHE_*
    """,
    "JavaScript": """
        NODE_* NVM_* FNM_* VOLTA_* N_PREFIX COREPACK_* PNPM_* YARN_* BUN_* DENO_* NPM_CONFIG_*
        npm_config_* ELECTRON_* ESBUILD_*
    """,
    "Python": """
        PYTHONPATH PYTHONHOME PYTHONUTF8 PYTHONIOENCODING PYTHONSTARTUP PYTHONUSERBASE
        PYTHONPYCACHEPREFIX PYTHONWARNINGS PYTHONHASHSEED VIRTUAL_ENV VIRTUAL_ENV_* CONDA_*
        MAMBA_* MICROMAMBA_* PIXI_* PYENV_* PIP_* PIPX_* UV_* POETRY_* PDM_* HATCH_* WORKON_HOME
        PIP_KEYRING_PROVIDER UV_KEYRING_PROVIDER PYTEST_* TOX_* RUFF_* MYPY* JUPYTER_* HF_HOME
        HF_HUB_CACHE TRANSFORMERS_CACHE TORCH_* NLTK_DATA PRE_COMMIT_*
    """,
    "Java and Android": """
        JAVA_* JDK_* _JAVA_OPTIONS GRADLE_* MAVEN_* M2_HOME ANT_* SBT_* COURSIER_* KOTLIN_*
        SDKMAN_* ANDROID_* JABBA_*
    """,
    "Go and Rust": """
        GOPATH GOROOT GOBIN GOCACHE GOMODCACHE GOPROXY GOSUMDB GOFLAGS GOPRIVATE GONOPROXY
        GONOSUMDB GONOSUMCHECK GOINSECURE GOTOOLCHAIN GOOS GOARCH GOARM GOAMD64 GOTMPDIR GOENV
        GOWORK GOMAXPROCS GOEXPERIMENT GOGC GOMEMLIMIT GODEBUG GOVCS GO111MODULE CGO_* CARGO_*
        RUSTUP_* RUST_* RUSTFLAGS RUSTDOCFLAGS RUSTC*
    """,
    "other languages": """
        GEM_* RUBY* RBENV_* rvm_* BUNDLE_PATH BUNDLE_GEMFILE BUNDLE_USER_* BUNDLE_WITHOUT
        BUNDLE_JOBS BUNDLE_APP_CONFIG COMPOSER_* PHP* DOTNET_* NUGET_* MSBUILD* SWIFT_*
        TOOLCHAINS DEVELOPER_DIR GHCUP_* STACK_* CABAL_* OPAM* OCAML* MIX_* HEX_HOME ERL_*
        ELIXIR_* JULIA_* R_* PERL5LIB PERL_* PERLBREW_* LUA_* FLUTTER_* PUB_*
    """,
}

EVERY_PROGRAM = {reason: tuple(names.split()) for reason, names in _NEEDED.items()} | {
    "where build and signing tools keep their files": tuple(
        sorted(
            {name for each in TOOLCHAINS for place in each.writes for name in variables_in(place)}
        )
    )
}
"""Needs of any agent or tool, by the reason for it. No row names a key."""

PROVIDERS = (
    *("ANTHROPIC_*", "OPENAI_*", "GEMINI_*", "GOOGLE_*", "OPENROUTER_*", "AZURE_*", "AWS_*"),
    *("VERTEX_*", "XAI_*", "GROQ_*", "MISTRAL_*", "DEEPSEEK_*", "TOGETHER_*", "FIREWORKS_*"),
    *("CEREBRAS_*", "COHERE_*", "PERPLEXITY_*", "MOONSHOT_*", "ZHIPU_*", "ZAI_*", "DASHSCOPE_*"),
    *("MINIMAX_*", "NVIDIA_*", "HF_*", "HUGGINGFACE_*", "DEEPINFRA_*", "BASETEN_*", "OLLAMA_*"),
    *("LMSTUDIO_*", "LM_STUDIO_*", "CLOUDFLARE_*", "AI_GATEWAY_*", "AICORE_*", "REQUESTY_*"),
)
"""Own logins of an agent that asks whatever provider it finds the key of."""


INSTEAD_OF_FILE = "FALLBACKD_INSTEAD_OF_FILE"


def instead_of_file(token: str = "") -> str:
    """
    The value of `INSTEAD_OF_FILE`: the key that a program below the daemon sends to the gateway.

    opencode stops where it cannot read a file that its settings name, and a confined one cannot
    read a person's token. `gateway setup` writes `{file:~/PATH{env:FALLBACKD_INSTEAD_OF_FILE}}`:
    variables are put in first, and the path is shortened before it is opened. So this leads from
    any PATH to an empty file, behind which the key stands.

    Args:
        token: Of the attempt; empty: the gateway is off.
    """
    return f"{'/..' * 64}/dev/null}}{token}{{file:/dev/null"


def _compiled(names: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(each).replace(r"\*", ".*") for each in names), re.DOTALL)


_NAMED = frozenset(
    name for names in EVERY_PROGRAM.values() for name in names if not name.endswith("*")
)
_MEANT = _compiled(name for names in EVERY_PROGRAM.values() for name in names if name.endswith("*"))


def is_for_every_program(name: str) -> bool:
    if name in _NAMED:
        return True
    return _MEANT.fullmatch(name) is not None and not is_name_of_secret(name)


def among(environ: Iterable[str], names: Iterable[str]) -> frozenset[str]:
    """The variables of an environment that the rows of a kind stand for, secrets included."""
    pattern = _compiled(names)
    return frozenset(name for name in environ if pattern.fullmatch(name))
