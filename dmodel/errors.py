"""What a user's mistake is raised as; importing this costs nothing."""


class InputError(ValueError):
    """Bad input: the message says what happened, what was expected, what was given, what to do."""


class NoPlanFits(InputError):
    """A question without a mistake whose answer is no: no plan of the job fits."""
