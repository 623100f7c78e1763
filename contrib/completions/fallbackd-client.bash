# bash completion for fallbackd-client, generated from its parser: do not edit.

# What may stand behind the words that lead to a command: options, those of them that take a value,
# and further words.
_fallbackd_client_table() {
    flags= valued= children=
    case $1 in
        "")
            flags="-h --help --socket --json --version"
            valued="--socket"
            children="accounts answer call cancel classify completions config continue delegate doctor drain events explain gateway health hooks list log mcp notify ping questions reply report resolve restore retry service sessions setup share show shutdown status statusline suggest undrain usage wait" ;;
        "accounts")
            flags="-h --help --socket --json"
            valued="--socket"
            children="" ;;
        "answer")
            flags="-h --help --socket --json --note"
            valued="--socket --note"
            children="" ;;
        "call")
            flags="-h --help --socket --json"
            valued="--socket"
            children="" ;;
        "cancel")
            flags="-h --help --socket --json --request-id --session"
            valued="--socket --request-id --session"
            children="" ;;
        "classify")
            flags="-h --help --socket --json --stream --exit-code --http-status --header --exception --kind --backend --timezone --signatures --explain --from-samples --now"
            valued="--socket --stream --exit-code --http-status --header --exception --kind --backend --timezone --now"
            children="" ;;
        "completions")
            flags="-h --help --socket --json"
            valued="--socket --list"
            children="" ;;
        "config")
            flags="-h --help --socket --json --dry-run"
            valued="--socket --dry-run"
            children="" ;;
        "continue")
            flags="-h --help --socket --json --from --to --interactive"
            valued="--socket --from --to"
            children="" ;;
        "delegate")
            flags="-h --help --socket --json --backend --role --chain --session --fresh --cwd --model --mode --wait --wait-for --settle --deadline --no-queue --no-failover --request-id --on-partial --permissions --differs-from --env --allow-metered --start"
            valued="--socket --backend --role --chain --session --cwd --model --mode --wait --wait-for --wait-s --settle --deadline --timeout --request-id --on-partial --permissions --differs-from --env"
            children="" ;;
        "doctor")
            flags="-h --help --socket --json --quiet --fix --yes"
            valued="--socket"
            children="" ;;
        "drain")
            flags="-h --help --socket --json"
            valued="--socket"
            children="" ;;
        "events")
            flags="-h --help --socket --json --since --kinds --session --count -f --follow"
            valued="--socket --since --kinds --session --count"
            children="" ;;
        "explain")
            flags="-h --help --socket --json -v --verbose --wrong --attempt --reason --note"
            valued="--socket --attempt --reason --note"
            children="" ;;
        "gateway")
            flags="-h --help --socket --json"
            valued="--socket"
            children="env setup token list" ;;
        "gateway env")
            flags="-h --help"
            valued="--socket"
            children="" ;;
        "gateway setup")
            flags="-h --help --print --yes --undo"
            valued="--socket"
            children="" ;;
        "gateway token")
            flags="-h --help --rotate"
            valued="--socket"
            children="" ;;
        "gateway list")
            flags="-h --help"
            valued="--socket"
            children="" ;;
        "health")
            flags="-h --help --socket --json"
            valued="--socket"
            children="list get mark clear pause resume" ;;
        "health list")
            flags="-h --help --only"
            valued="--socket --only"
            children="" ;;
        "health get")
            flags="-h --help"
            valued="--socket"
            children="" ;;
        "health mark")
            flags="-h --help --reason --ttl --ttl-s --note --everywhere"
            valued="--socket --reason --ttl --ttl-s --note"
            children="" ;;
        "health clear")
            flags="-h --help --everywhere"
            valued="--socket"
            children="" ;;
        "health pause")
            flags="-h --help --note --everywhere"
            valued="--socket --note"
            children="" ;;
        "health resume")
            flags="-h --help --everywhere"
            valued="--socket"
            children="" ;;
        "hooks")
            flags="-h --help --socket --json"
            valued="--socket"
            children="install uninstall status" ;;
        "hooks install")
            flags="-h --help --print --yes --no-statusline"
            valued="--socket"
            children="" ;;
        "hooks uninstall")
            flags="-h --help --print --yes"
            valued="--socket"
            children="" ;;
        "hooks status")
            flags="-h --help"
            valued="--socket"
            children="" ;;
        "list")
            flags="-h --help --socket --json --all --state --backend --cwd --since --session --wide"
            valued="--socket --state --backend --cwd --since --session"
            children="" ;;
        "log")
            flags="-h --help --socket --json -f --follow --raw --attempt"
            valued="--socket --attempt"
            children="" ;;
        "mcp")
            flags="-h --help --socket --json --allow-health"
            valued="--socket"
            children="install" ;;
        "mcp install")
            flags="-h --help --print --yes --undo"
            valued="--socket"
            children="" ;;
        "notify")
            flags="-h --help --socket --json"
            valued="--socket"
            children="" ;;
        "ping")
            flags="-h --help --socket --json"
            valued="--socket"
            children="" ;;
        "questions")
            flags="-h --help --socket --json --session --all"
            valued="--socket --session"
            children="" ;;
        "reply")
            flags="-h --help --socket --json --wait-for"
            valued="--socket --wait-for"
            children="" ;;
        "report")
            flags="-h --help --socket --json --backend --claude-hook --session --model --credential --attempt --lease --turn --next-lease --started-at --file --stream --exit-code --http-status --header --exception"
            valued="--socket --backend --session --model --credential --attempt --lease --turn --started-at --file --stream --exit-code --http-status --header --exception"
            children="" ;;
        "resolve")
            flags="-h --help --socket --json --backend --session --role --chain --model --prompt-tokens --lease"
            valued="--socket --backend --session --role --chain --model --prompt-tokens"
            children="" ;;
        "restore")
            flags="-h --help --socket --json --state-dir"
            valued="--socket --state-dir"
            children="" ;;
        "retry")
            flags="-h --help --socket --json --wait-for"
            valued="--socket --wait-for"
            children="" ;;
        "service")
            flags="-h --help --socket --json --yes --dry-run -f --follow -n --lines"
            valued="--socket -n --lines"
            children="" ;;
        "sessions")
            flags="-h --help --socket --json --limit --end"
            valued="--socket --limit"
            children="" ;;
        "setup")
            flags="-h --help --socket --json --yes --dry-run --no-service --no-delegate --files"
            valued="--socket"
            children="" ;;
        "share")
            flags="-h --help --socket --json"
            valued="--socket"
            children="status machines test" ;;
        "share status")
            flags="-h --help"
            valued="--socket"
            children="" ;;
        "share machines")
            flags="-h --help"
            valued="--socket"
            children="" ;;
        "share test")
            flags="-h --help"
            valued="--socket"
            children="" ;;
        "show")
            flags="-h --help --socket --json"
            valued="--socket"
            children="" ;;
        "shutdown")
            flags="-h --help --socket --json --stop-work"
            valued="--socket"
            children="" ;;
        "status")
            flags="-h --help --socket --json --session --verbose --watch --wide"
            valued="--socket --session"
            children="" ;;
        "statusline")
            flags="-h --help --socket --json --then"
            valued="--socket --then"
            children="" ;;
        "suggest")
            flags="-h --help --socket --json --size --scope --complexity --root"
            valued="--socket --size --scope --complexity --root"
            children="" ;;
        "undrain")
            flags="-h --help --socket --json"
            valued="--socket"
            children="" ;;
        "usage")
            flags="-h --help --socket --json --session --backend --since"
            valued="--socket --session --backend --since"
            children="" ;;
        "wait")
            flags="-h --help --socket --json --wait-for"
            valued="--socket --wait-for --timeout"
            children="" ;;
    esac
}

# What the value of an option, or the word at a place, may be.
_fallbackd_client_value() {
    case $1 in
        ":--socket") _fallbackd_client_paths -f ;;
        "accounts:--socket") _fallbackd_client_paths -f ;;
        "accounts:1") _fallbackd_client_words "list add" ;;
        "answer:--socket") _fallbackd_client_paths -f ;;
        "answer:1") _fallbackd_client_ask questions ;;
        "call:--socket") _fallbackd_client_paths -f ;;
        "call:1") _fallbackd_client_ask methods ;;
        "cancel:--socket") _fallbackd_client_paths -f ;;
        "cancel:--session") _fallbackd_client_ask sessions ;;
        "cancel:1") _fallbackd_client_ask delegations ;;
        "classify:--socket") _fallbackd_client_paths -f ;;
        "classify:--stream") _fallbackd_client_words "stdout stderr jsonl http exception unknown" ;;
        "classify:--backend") _fallbackd_client_ask backends ;;
        "classify:1") _fallbackd_client_paths -f ;;
        "completions:--socket") _fallbackd_client_paths -f ;;
        "completions:1") _fallbackd_client_words "bash fish zsh" ;;
        "config:--socket") _fallbackd_client_paths -f ;;
        "config:--dry-run") _fallbackd_client_paths -f ;;
        "config:1") _fallbackd_client_words "check edit import path reload set show" ;;
        "config:2") _fallbackd_client_paths -f ;;
        "continue:--socket") _fallbackd_client_paths -f ;;
        "continue:--to") _fallbackd_client_ask backends ;;
        "delegate:--socket") _fallbackd_client_paths -f ;;
        "delegate:--backend") _fallbackd_client_ask backends ;;
        "delegate:--chain") _fallbackd_client_ask backends ;;
        "delegate:--session") _fallbackd_client_ask sessions ;;
        "delegate:--cwd") _fallbackd_client_paths -d ;;
        "delegate:--mode") _fallbackd_client_words "interactive batch" ;;
        "delegate:--wait") _fallbackd_client_words "accepted settled finished" ;;
        "delegate:--on-partial") _fallbackd_client_words "continue ask fail" ;;
        "delegate:--permissions") _fallbackd_client_words "read workspace full" ;;
        "delegate:--differs-from") _fallbackd_client_ask backends ;;
        "doctor:--socket") _fallbackd_client_paths -f ;;
        "drain:--socket") _fallbackd_client_paths -f ;;
        "events:--socket") _fallbackd_client_paths -f ;;
        "events:--session") _fallbackd_client_ask sessions ;;
        "explain:--socket") _fallbackd_client_paths -f ;;
        "explain:1") _fallbackd_client_ask delegations ;;
        "gateway:--socket") _fallbackd_client_paths -f ;;
        "gateway env:--socket") _fallbackd_client_paths -f ;;
        "gateway env:1") _fallbackd_client_words "claude codex opencode gemini openai anthropic" ;;
        "gateway setup:--socket") _fallbackd_client_paths -f ;;
        "gateway setup:1") _fallbackd_client_words "claude codex gemini opencode" ;;
        "gateway token:--socket") _fallbackd_client_paths -f ;;
        "gateway list:--socket") _fallbackd_client_paths -f ;;
        "health:--socket") _fallbackd_client_paths -f ;;
        "health list:--socket") _fallbackd_client_paths -f ;;
        "health list:--only") _fallbackd_client_words "unhealthy" ;;
        "health get:--socket") _fallbackd_client_paths -f ;;
        "health get:1") _fallbackd_client_ask backends ;;
        "health mark:--socket") _fallbackd_client_paths -f ;;
        "health mark:1") _fallbackd_client_ask backends ;;
        "health clear:--socket") _fallbackd_client_paths -f ;;
        "health clear:1") _fallbackd_client_ask backends ;;
        "health pause:--socket") _fallbackd_client_paths -f ;;
        "health pause:1") _fallbackd_client_ask backends ;;
        "health resume:--socket") _fallbackd_client_paths -f ;;
        "health resume:1") _fallbackd_client_ask backends ;;
        "hooks:--socket") _fallbackd_client_paths -f ;;
        "hooks install:--socket") _fallbackd_client_paths -f ;;
        "hooks install:1") _fallbackd_client_words "claude codex" ;;
        "hooks uninstall:--socket") _fallbackd_client_paths -f ;;
        "hooks uninstall:1") _fallbackd_client_words "claude codex" ;;
        "hooks status:--socket") _fallbackd_client_paths -f ;;
        "hooks status:1") _fallbackd_client_words "claude codex" ;;
        "list:--socket") _fallbackd_client_paths -f ;;
        "list:--state") _fallbackd_client_words "awaiting_answer cancelled failed handed_back queued refused running succeeded waiting" ;;
        "list:--backend") _fallbackd_client_ask backends ;;
        "list:--cwd") _fallbackd_client_paths -d ;;
        "list:--session") _fallbackd_client_ask sessions ;;
        "log:--socket") _fallbackd_client_paths -f ;;
        "log:1") _fallbackd_client_ask delegations ;;
        "mcp:--socket") _fallbackd_client_paths -f ;;
        "mcp install:--socket") _fallbackd_client_paths -f ;;
        "mcp install:1") _fallbackd_client_words "claude codex opencode gemini cursor zed" ;;
        "notify:--socket") _fallbackd_client_paths -f ;;
        "notify:1") _fallbackd_client_words "test" ;;
        "ping:--socket") _fallbackd_client_paths -f ;;
        "questions:--socket") _fallbackd_client_paths -f ;;
        "questions:--session") _fallbackd_client_ask sessions ;;
        "reply:--socket") _fallbackd_client_paths -f ;;
        "reply:1") _fallbackd_client_ask delegations ;;
        "report:--socket") _fallbackd_client_paths -f ;;
        "report:--backend") _fallbackd_client_ask backends ;;
        "report:--session") _fallbackd_client_ask sessions ;;
        "report:--file") _fallbackd_client_paths -f ;;
        "report:--stream") _fallbackd_client_words "stdout stderr jsonl http exception unknown" ;;
        "report:1") _fallbackd_client_words "success failure released" ;;
        "resolve:--socket") _fallbackd_client_paths -f ;;
        "resolve:--backend") _fallbackd_client_ask backends ;;
        "resolve:--session") _fallbackd_client_ask sessions ;;
        "resolve:--chain") _fallbackd_client_ask backends ;;
        "resolve:1") _fallbackd_client_ask backends ;;
        "restore:--socket") _fallbackd_client_paths -f ;;
        "retry:--socket") _fallbackd_client_paths -f ;;
        "retry:1") _fallbackd_client_ask delegations ;;
        "service:--socket") _fallbackd_client_paths -f ;;
        "service:1") _fallbackd_client_words "install uninstall start stop restart status logs" ;;
        "sessions:--socket") _fallbackd_client_paths -f ;;
        "sessions:1") _fallbackd_client_ask sessions ;;
        "setup:--socket") _fallbackd_client_paths -f ;;
        "share:--socket") _fallbackd_client_paths -f ;;
        "share status:--socket") _fallbackd_client_paths -f ;;
        "share machines:--socket") _fallbackd_client_paths -f ;;
        "share test:--socket") _fallbackd_client_paths -f ;;
        "show:--socket") _fallbackd_client_paths -f ;;
        "show:1") _fallbackd_client_ask delegations ;;
        "shutdown:--socket") _fallbackd_client_paths -f ;;
        "status:--socket") _fallbackd_client_paths -f ;;
        "status:--session") _fallbackd_client_ask sessions ;;
        "statusline:--socket") _fallbackd_client_paths -f ;;
        "suggest:--socket") _fallbackd_client_paths -f ;;
        "suggest:--size") _fallbackd_client_words "tiny small medium large xlarge" ;;
        "suggest:--complexity") _fallbackd_client_words "low medium high extreme" ;;
        "suggest:--root") _fallbackd_client_paths -d ;;
        "undrain:--socket") _fallbackd_client_paths -f ;;
        "usage:--socket") _fallbackd_client_paths -f ;;
        "usage:--session") _fallbackd_client_ask sessions ;;
        "usage:--backend") _fallbackd_client_ask backends ;;
        "wait:--socket") _fallbackd_client_paths -f ;;
        "wait:1") _fallbackd_client_ask delegations ;;
    esac
}

_fallbackd_client_words() {
    mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur")
}

_fallbackd_client_ask() {
    local -a found
    mapfile -t found < <(fallbackd-client completions --list "$1" 2>/dev/null)
    _fallbackd_client_words "${found[*]%%$'\t'*}"
}

_fallbackd_client_paths() {
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen "$1" -- "$cur")
}

_fallbackd_client() {
    local line=${COMP_LINE:0:COMP_POINT} IFS=$' \t\n'
    local cur path= word flags valued children prefix i
    local -i at=1 place=1
    local -a words
    COMPREPLY=()
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    local -i last=$(( ${#words[@]} - 1 ))
    cur=${words[last]}
    _fallbackd_client_table ""
    while (( at < last )); do
        word=${words[at]}
        if [[ $word == -* ]]; then
            [[ $word != *=* && " $valued " == *" $word "* ]] && at+=1
        elif [[ " $children " == *" $word "* ]]; then
            path=${path:+$path }$word place=1
            _fallbackd_client_table "$path"
        else
            place+=1
        fi
        at+=1
    done
    if (( at > last )); then
        _fallbackd_client_value "$path:${words[last - 1]}"
    elif [[ $cur == --*=* ]]; then
        word=${cur%%=*}
        cur=${cur#*=}
        _fallbackd_client_value "$path:$word"
        # The shell completes behind a `=` only where that ends a word.
        if [[ $COMP_WORDBREAKS != *=* ]]; then
            for i in "${!COMPREPLY[@]}"; do COMPREPLY[i]=$word=${COMPREPLY[i]}; done
        fi
    elif [[ $cur == -* ]]; then
        _fallbackd_client_words "$flags"
    elif [[ -n $children ]]; then
        _fallbackd_client_words "$children"
    else
        _fallbackd_client_value "$path:$place"
    fi
    if [[ $cur == *:* && $COMP_WORDBREAKS == *:* ]]; then
        prefix=${cur%"${cur##*:}"}
        for i in "${!COMPREPLY[@]}"; do COMPREPLY[i]=${COMPREPLY[i]#"$prefix"}; done
    fi
}

complete -F _fallbackd_client fallbackd-client fb
