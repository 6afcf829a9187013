"""Comparison of the fleet's bytes with the device counter: lag, idle level, residual and fit."""

EXPORTS = {
    "counter_bins": "fleet_curve",
    "lag": "CLOCK_PPM_MAX is_clock",
    "overlapping_bursts": "Neighbour",
    "reconcile": "reconcile_run",
    "residual_causes": "DeclarationError OTHER_TRAFFIC UNSEEN_BY_BYTES certain_declaration_error",
}
