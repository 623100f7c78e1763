"""The documentation that is made from the code: references and man pages (`make docs`)."""
