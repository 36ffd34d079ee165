"""The one exception a user is meant to see."""


class UserError(Exception):
    """Something a user can cause and can mend.

    The message is one line: what was found, what was expected, what to do. The command line prints it without a
    traceback and exits with 2. Everything else that goes wrong keeps its traceback.
    """
