"""What a user's mistake is raised as; importing this costs nothing."""


class InputError(ValueError):
    """A user's mistake: the message says what happened, what was expected, what was got and what to
    do."""


class NoPlanFits(InputError):
    """A question without a mistake whose answer is no: no plan of the job fits."""
