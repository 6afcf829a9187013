"""Completion of ``FIELD=VALUE`` in bash, which takes ``=`` for the end of a word."""

from collections.abc import Sequence

from typer._click.shell_completion import CompletionItem, add_completion_class
from typer._completion_classes import BashComplete


class AssignmentBashComplete(BashComplete):
    """Completion that joins the words of an assignment, and prints only what bash replaces."""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        *joined, last = join_assignments([*args, incomplete])
        kept = last.removesuffix(incomplete.removeprefix("="))
        # The name of the option is no part of the value.
        self._kept = kept.partition("=")[2] if kept.startswith("-") else kept
        return joined, last

    def format_completion(self, item: CompletionItem) -> str:
        return super().format_completion(item).removeprefix(self._kept)


def join_assignments(words: Sequence[str]) -> list[str]:
    """Return the words with the parts around each ``=`` joined.

    Args:
        words: Words as bash splits them, such as ``["--set", "scale", "=", "2"]``.
    """
    joined: list[str] = []
    for number, word in enumerate(words):
        if joined and (word == "=" or (number and words[number - 1] == "=")):
            joined[-1] += word
        else:
            joined.append(word)
    return joined


def use_for_bash() -> None:
    """Use the completion of this module for bash."""
    add_completion_class(AssignmentBashComplete, "bash")
