"""What is taken from another program is written into the file as it is."""

from pathlib import Path

import pytest

from fallbackd.app.configuration import import_text
from fallbackd.config.load import VOICE_FILE, load


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_the_file_keeps_its_mark_and_its_ends_of_lines(tmp_path: Path, mark: str, end: str) -> None:
    config, voice = tmp_path / "config.toml", tmp_path / VOICE_FILE
    voice.write_text('{"backends": {}}')
    config.write_bytes(f"{mark}# mine{end}[defaults]{end}settle_s = 7{end}".encode())
    import_text(str(config), path=str(voice), env=None, write=True)
    text = config.read_bytes().decode()
    assert text.startswith(f"{mark}# Imported from {voice}.{end}import = ")
    assert text.endswith(f"# mine{end}[defaults]{end}settle_s = 7{end}")
    assert text.count("\n") == text.count(end)
    loaded = load(text, path=str(config))
    assert (loaded.errors, loaded.policy.defaults.settle_s) == ((), 7)
