"""Completion of ``FIELD=VALUE`` in bash, which takes ``=`` for the end of a word."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence


@contextlib.contextmanager
def joined_words() -> Iterator[None]:
    """Join the words of each assignment, and print only what bash will replace."""
    (words, prefix), output = read_words(os.environ), sys.stdout
    os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    with contextlib.redirect_stdout(io.StringIO()) as completed:
        try:
            yield
        finally:
            lines = completed.getvalue().splitlines()
            output.write("".join(f"{line.removeprefix(prefix)}\n" for line in lines))


def read_words(variables: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the words to complete, and the part of the last value that bash does not replace.

    Args:
        variables: Variables of bash's completion.
    """
    text = variables["COMP_WORDS"]
    words = text.split("\n" if "\n" in text else " ")[: int(variables["COMP_CWORD"]) + 1]
    joined = join_assignments(words)
    prefix = joined[-1].removesuffix(words[-1].removeprefix("="))
    # The name of the option is no part of the value.
    return joined, prefix.partition("=")[2] if prefix.startswith("-") else prefix


def join_assignments(words: Sequence[str]) -> list[str]:
    """Return the words with the parts around each ``=`` joined.

    Args:
        words: Words as bash splits them, such as ``["--set", "scale", "=", "2"]``.
    """
    joined: list[str] = []
    for number, word in enumerate(words):
        if joined and (word == "=" or words[number - 1] == "="):
            joined[-1] += word
        else:
            joined.append(word)
    return joined
