"""Azure in rehearsal: the real Terraform, provider and CLI against a strict stand-in.

``python -m deploy.rehearsal`` (``make rehearse``). :mod:`~deploy.rehearsal.published` holds every
body against Microsoft's published types, :mod:`~deploy.rehearsal.subscription` keeps resources and
refuses what Azure refuses (:mod:`~deploy.rehearsal.azure_refusals`),
:mod:`~deploy.rehearsal.computed` adds what Azure adds, :mod:`~deploy.rehearsal.data_plane` takes
blobs, :mod:`~deploy.rehearsal.proxy` serves it all under Azure's own host names behind a proxy.
:mod:`~deploy.rehearsal.stage` finds the tools, :mod:`~deploy.rehearsal.range_cases` plays a range's
life.
"""
