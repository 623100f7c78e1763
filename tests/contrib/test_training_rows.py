"""Rows for training: what is handed on of messages instead of their texts."""

from pathlib import Path

from contrib.weights.hashed_rows import Row, read_rows, row_of, sizes_of, write_rows

from fallbackd.classify.features import PARTS, features_of

TEXTS = [
    "Error: 429 Too Many Requests",
    "Error: 429 Too Many Requests, try again in a minute",
    "All 214 tests pass. 限制已达到",
]


def rows_of(texts: list[str]) -> list[Row]:
    return [row_of({"text": text, "reason": "rate_limit", "thread": text}) for text in texts]


def test_rows_come_back_without_what_occurs_in_one_of_them_only(tmp_path: Path) -> None:
    rows = rows_of([*TEXTS, *TEXTS[:2]])
    write_rows(rows, tmp_path / "rows.xz")
    found, sizes = read_rows(tmp_path / "rows.xz")
    assert [one.label for one in found] == [one.label for one in rows]
    assert sizes == sizes_of(rows)
    for before, after in zip(rows, found, strict=True):
        for part in PARTS:
            left, all_of_it = (
                set(getattr(after.features, part)),
                set(getattr(before.features, part)),
            )
            others = [set(getattr(one.features, part)) for one in rows if one is not before]
            assert left == all_of_it & set().union(*others)


def test_the_same_rows_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_rows(rows_of(TEXTS), tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_row_has_the_features_of_its_text_and_no_text() -> None:
    (row,) = rows_of([TEXTS[2]])
    features = features_of(TEXTS[2], None, "generic")
    assert all(set(getattr(row.features, part)) == getattr(features, part) for part in PARTS)
    assert TEXTS[2] not in repr(row)
