"""Comparison of the fleet's bytes with the device counter: lag, idle level, residual and fit."""

EXPORTS = {
    "counter_bins": "fleet_curve",
    "lag": "CLOCK_PPM_MAX is_clock",
    "mixed_parts": "part_beside",
    "overlapping_bursts": "Neighbour OverlappingBursts",
    "reconcile": "reconcile_run",
    "residual_causes": "DeclarationError OTHER_TRAFFIC UNSEEN_BY_BYTES certain_declaration_error",
}
