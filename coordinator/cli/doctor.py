"""``broadside doctor``: what this host needs, and the fix for what is wrong."""

import typer


def doctor() -> None:
    """Check what this host needs, and print the fix for what is wrong."""
    typer.echo("not yet")
