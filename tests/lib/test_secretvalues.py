from fallbackd.lib.secretvalues import SHOWN, concealer


def test_values_of_variables_that_speak_of_secrets_are_replaced_whatever_their_form() -> None:
    conceal = concealer(
        {"ACME_KEY": "correct-horse", "DB_PASSWORD": "correct-horse-battery", "TOKEN": "(a|b)+.*x"}
    )
    assert conceal("no correct-horse-battery, correct-horse!") == f"no {SHOWN}, {SHOWN}!"
    assert conceal("it said (a|b)+.*x") == f"it said {SHOWN}"


def test_words_paths_and_other_variables_are_left_alone() -> None:
    environ = {
        "API_KEY": "none",
        "GOOGLE_CREDENTIALS": "/home/me/key.json",
        "EDITOR": "emacsclient",
    }
    text = "none of /home/me/key.json for emacs -nw"
    assert concealer(environ)(text) == text
    assert concealer({})(text) == text
