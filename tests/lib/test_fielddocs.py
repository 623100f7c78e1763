from msgspec import Struct

from fallbackd.lib.schemas import described_components, field_docs


class Parent(Struct):
    name: str
    """Of the
    child."""
    bare: int = 0


class Child(Parent):
    born_at: float = 0
    """When it was born."""
    "Not about any field."
    parents: tuple[Parent, ...] = ()


def test_the_string_below_a_field_describes_it() -> None:
    assert field_docs(Child) == {"name": "Of the child.", "born_at": "When it was born."}


def test_a_class_without_a_source_has_no_descriptions() -> None:
    assert field_docs(type("Made", (), {"__annotations__": {"a": int}})) == {}
    assert field_docs(int) == {}


def test_schemas_carry_the_descriptions_of_structs_at_any_depth() -> None:
    found, components = described_components([dict[str, tuple[Child, ...]]], "#/{name}")
    assert len(found) == 1
    assert components["Child"]["properties"]["born_at"]["description"] == "When it was born."
    assert components["Parent"]["properties"]["name"]["description"] == "Of the child."
    assert "description" not in components["Parent"]["properties"]["bare"]
