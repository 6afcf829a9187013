"""Run lifecycle with launch, dispatch, leases and closing."""
