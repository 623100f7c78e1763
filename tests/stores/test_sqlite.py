"""The store in a SQLite file."""

from pathlib import Path

from tests.stores.contract import StoreContract


class TestSqliteStore(StoreContract):
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:{tmp_path / 'state' / 'fallbackd.db'}"
