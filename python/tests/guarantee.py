"""What a failed judgement of a history is."""


class GuaranteeBroken(AssertionError):
    """A history contradicts a guarantee of docs/design.md. That is never a matter of load:
    the test is not run again."""
