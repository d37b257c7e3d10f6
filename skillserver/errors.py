"""The one error tree. Every expected failure is a SkillError: one sentence and the next step.

    SkillError
    ├── BadRequest     the caller's input is wrong; names the value seen and the valid choices
    ├── NotHere        this host lacks it: no GPU, no torch, no SLURM; or permission was not given
    ├── TooLong        a deadline passed; whatever was measured until then is kept
    ├── WorkerFailed   a child process ended badly; carries its last words
    └── DataBroken     our own tables, pages or records cannot be read

`str(error)` is `code: what happened, with the value seen. Next: the call or flag to use.`
Anything that is not a SkillError is a bug and is not caught.

>>> raise BadRequest("unknown_dtype", "dtype 'bf61' is not known.", valid=["bf16", "fp16"], next="pass dtype='bf16'.")
"""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 900  # characters of a message
SHOWN_CHOICES = 40  # a list longer than this hides the sentence that it should explain


class SkillError(Exception):
    """An expected failure; `code` is stable, `message` one sentence, `next` what to do, `valid` the choices."""

    def __init__(self, code: str, message: str, *, next: str = "", valid: Iterable[str] = ()) -> None:
        self.code = code
        message = _bounded(message)
        self.message = message if message.endswith((".", "!", "?")) else message + "."
        self.next = next
        self.valid = list(valid)
        super().__init__(self.sentence())

    def sentence(self) -> str:
        """The whole error on one line, as the model and the terminal see it."""
        text = f"{self.code}: {self.message}"
        if self.valid:
            shown = ", ".join(self.valid[:SHOWN_CHOICES])
            text += f" Valid: {shown}{', ...' if len(self.valid) > SHOWN_CHOICES else ''}."
        if self.next:
            text += f" Next: {self.next if self.next.endswith(('.', '?')) else self.next + '.'}"
        return " ".join(text.split())

    def document(self) -> dict[str, object]:
        """The same for a script: what `--json` prints."""
        return {"code": self.code, "message": self.message, "next": self.next, "valid": self.valid}


def _bounded(message: str) -> str:
    """A message that repeats a value of any length is cut in its middle: the reader pays for every word."""
    if len(message) <= LONGEST:
        return message
    head, tail = LONGEST * 2 // 3, LONGEST // 3
    return f"{message[:head]} ... ({len(message) - head - tail:,} characters left out) ... {message[-tail:]}"


class BadRequest(SkillError):
    """The input is wrong."""


class NotHere(SkillError):
    """This host lacks what the call needs, or nobody permitted it."""


class TooLong(SkillError):
    """A deadline passed."""


class WorkerFailed(SkillError):
    """A child process ended badly."""


class DataBroken(SkillError):
    """A table, page or record of ours cannot be read."""
