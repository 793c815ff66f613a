"""Errors with stable codes.

A `UserError` is something the user can fix: it carries a code (`SP1203`), what is wrong and the fix, and every
code has a section in docs/errors.md. An `InternalError` is a defect of stepplan. The command line prints the
first without a traceback and the second with one.

Code ranges: 10xx models and graphs, 11xx targets, 12xx cost tables and profiling, 13xx planning,
14xx plans and check, 15xx emit and build, 16xx executors at run time, 17xx files, 18xx command line and GPUs.
"""


class UserError(Exception):
    """A mistake in the input, with a stable code and the way to fix it."""

    def __init__(self, code: str, problem: str, fix: str) -> None:
        super().__init__(f"{code}: {problem}\n  fix: {fix}\n  see: docs/errors.md#{code.lower()}")
        self.code = code
        self.problem = problem
        self.fix = fix

    def __reduce__(self) -> tuple[type["UserError"], tuple[str, str, str]]:
        return (UserError, (self.code, self.problem, self.fix))


class InternalError(Exception):
    """A defect of stepplan itself: never the user's fault."""
