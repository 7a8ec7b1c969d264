"""Errors that a user can mend: one line each, with a code, the value, and what to do."""


class UserError(ValueError):
    """What the user asked for cannot be done as asked.

    `code` is one of the codes of the documentation (`E-CONFIG`, `E-TOK`, ...). Each problem is one line that
    names the key or file, the value that was found, and the remedy.
    """

    def __init__(self, code: str, *problems: str):
        super().__init__("\n".join(f"{code} {problem}" for problem in problems))
        self.code = code
