"""Words of command lines that say what is done outside of a directory, as data."""

import re
from collections.abc import Mapping

_PHRASES = """
git commit
git push
git am
git cherry-pick
git merge
git revert
git rebase
git send-email
svn commit
svn ci
hg commit
hg ci
hg push
jj git push
npm publish
npm unpublish
npm deprecate
pnpm publish
yarn publish
yarn npm publish
bun publish
cargo publish
cargo yank
gem push
twine upload
python -m twine upload
poetry publish
uv publish
pdm publish
flit publish
hatch publish
mvn deploy
gradle publish
docker push
docker image push
podman push
helm push
helm install
helm upgrade
helm uninstall
kubectl apply
kubectl create
kubectl delete
kubectl patch
kubectl replace
kubectl rollout
kubectl scale
kubectl set
terraform apply
terraform destroy
tofu apply
tofu destroy
pulumi up
pulumi destroy
vercel deploy
netlify deploy
firebase deploy
fly deploy
flyctl deploy
wrangler deploy
wrangler publish
serverless deploy
sls deploy
gcloud run deploy
gcloud app deploy
gcloud functions deploy
aws s3 cp
aws s3 mv
aws s3 rm
aws s3 sync
aws ses send-email
aws sns publish
ansible-playbook
mail
mailx
s-nail
mutt
sendmail
msmtp
swaks
"""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _by_program(phrases: str) -> Mapping[str, tuple[tuple[str, ...], ...]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for line in phrases.split("\n"):
        if line:
            program, *rest = (word for word in line.split() if not word.startswith("-"))
            found.setdefault(program, []).append(tuple(rest))
    return {program: tuple(rests) for program, rests in found.items()}


_STAYS = frozenset(
    f"git {verb}" for verb in ("commit", "am", "cherry-pick", "merge", "revert", "rebase")
) | {"hg commit", "hg ci"}
_OF_FORGES = """
pr create
pr merge
pr close
pr comment
pr edit
pr review
issue create
issue close
issue comment
issue edit
mr create
mr merge
release create
release upload
workflow run
repo create
repo delete
gist create
api
"""
LEAVES = (
    *(line for line in _PHRASES.split("\n") if line and line not in _STAYS),
    *(f"{one} {verb}" for one in ("gh", "glab") for verb in _OF_FORGES.split("\n") if verb),
    *("scp", "sftp"),
)
"""Beginnings of commands that leave the machine: what `ACTS` names without what stays in the
repository, and what writes at a forge."""

ACTS = _by_program(_PHRASES)
"""By program: what follows it where it acts, options left out."""

FORGES = frozenset({"gh", "glab", "hub"})
READS_ONLY = _words("""
list ls view diff checks status show get search watch download clone checkout co browse
verify help version config alias completion extension auth trace
""")
"""These verbs of a client of a forge change nothing there, and every other one does."""
FORGE_WRITES = re.compile(
    r"(?:^|\s)(?:-X\s*|--method[ =])(?!GET)\w|(?:^|\s)(?:-[fF]|--(?:raw-)?field|--input)[\s=]"
)

AT_ONCE = _words("""
git svn hg jj npm pnpm yarn bun cargo gem twine poetry uv pdm flit hatch docker podman
""")
"""Programs that have done nothing outside where they fail."""

COPIES = frozenset({"scp", "rsync", "sftp"})

TASKS: Mapping[str, int] = {
    "make": 10,
    "just": 10,
    "task": 10,
    "npm": 0,
    "pnpm": 0,
    "yarn": 1,
    "bun": 0,
}
"""Programs that run tasks which the user has named, and how many of their words may be such names
where no `run` stands before them."""

WRAPPERS = _words("""
sudo doas env time nohup nice ionice exec command builtin timeout stdbuf setsid xargs
then do else elif if while until ! npx bunx
""")
"""Words that may stand before the program."""

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish"})

WITH_VALUE: Mapping[str, frozenset[str]] = {
    "git": frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace"}),
    "gh": frozenset({"-R", "--repo", "-X", "--method", "-H"}),
    "glab": frozenset({"-R", "--repo", "-X", "--method", "-H"}),
    "npm": frozenset({"--prefix", "-w", "--workspace"}),
    "pnpm": frozenset({"-C", "--dir", "--filter"}),
    "cargo": frozenset({"--manifest-path"}),
    "docker": frozenset({"--context", "-H", "--config"}),
    "kubectl": frozenset({"-n", "--namespace", "--context", "--kubeconfig"}),
    "helm": frozenset({"-n", "--namespace", "--kube-context"}),
    "make": frozenset({"-C", "-f", "-j"}),
    "aws": frozenset({"--profile", "--region"}),
}
"""Options before the verb whose value is a word of its own."""

HTTP_CLIENTS = frozenset({"curl", "wget", "http", "https", "xh"})
HTTP_WRITES = re.compile(
    r"(?:^|\s)(?:-X\s*|--request[ =]|--method[ =])(?:POST|PUT|PATCH|DELETE)\b"
    r"|(?:^|\s)(?:-d|--data(?:-\w+)?|-F|--form|--json|-T|--upload-file|--post-data|--post-file)[\s=]"
    r"|^(?:-\S+\s+)*(?:POST|PUT|PATCH|DELETE)\s"
)
