"""
Write the sources of the site and the man pages.

    python -m contrib.docs build/docs
"""

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(target: Path) -> None:
    os.environ["COLUMNS"] = "90"  # of help texts, wherever this runs
    from contrib.docs import manual, reference

    source, man = target / "source", target / "man"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / "docs", source)
    for path, text in reference.pages().items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(text)
    shutil.copy(ROOT / "mkdocs.yml", target)
    man.mkdir(parents=True, exist_ok=True)
    for name, text in manual.pages().items():
        (man / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
