from fallbackd_client.wire import codes


def test_every_code_has_a_word() -> None:
    numbers = {
        value for name, value in vars(codes).items() if name.isupper() and isinstance(value, int)
    }
    assert set(codes.KINDS) == numbers
    assert len(set(codes.KINDS.values())) == len(codes.KINDS)


def test_a_code_of_a_later_version_has_a_word_too() -> None:
    assert codes.kind_of(-32099) == "error"
    assert codes.kind_of(codes.REFUSED) == "refused"
