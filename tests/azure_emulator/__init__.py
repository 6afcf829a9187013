"""Azure emulator for tests of the real Terraform, provider and CLI.

Usage: ``python -m tests.azure_emulator`` (``make rehearse``).
:mod:`~tests.azure_emulator.published` checks every body against Microsoft's published types.
:mod:`~tests.azure_emulator.subscription` stores resources and rejects requests that Azure rejects
(:mod:`~tests.azure_emulator.azure_refusals`). :mod:`~tests.azure_emulator.computed` adds the fields
that Azure adds. :mod:`~tests.azure_emulator.data_plane` stores blobs.
:mod:`~tests.azure_emulator.proxy` serves all under Azure's host names behind a proxy.
:mod:`~tests.azure_emulator.stage` finds the tools. :mod:`~tests.azure_emulator.range_cases` runs
the life cycle of a range.
"""
