"""Azure in rehearsal: the real Terraform, provider and CLI against a strict stand-in.

``python -m tests.azure_emulator`` (``make rehearse``). :mod:`~tests.azure_emulator.published`
holds every
body against Microsoft's published types, :mod:`~tests.azure_emulator.subscription` keeps resources
and refuses what Azure refuses (:mod:`~tests.azure_emulator.azure_refusals`),
:mod:`~tests.azure_emulator.computed` adds what Azure adds, :mod:`~tests.azure_emulator.data_plane`
takes
blobs, :mod:`~tests.azure_emulator.proxy` serves it all under Azure's own host names behind a proxy.
:mod:`~tests.azure_emulator.stage` finds the tools, :mod:`~tests.azure_emulator.range_cases` plays
a range's life.
"""
