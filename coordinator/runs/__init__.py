"""The life of a run: launch, dispatch, leases, closing; rows in, rows out."""
