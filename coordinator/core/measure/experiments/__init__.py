"""Analysis of drills, of scale-out under constant load, and of canaries.

``EXPORTS`` lists the names that other folders can import, by module.
"""

EXPORTS = {
    "canary": "find_canary",
    "drill": "DrillRecords DrillResult ExecutedEvent analyze_drill",
    "scale_out": "CapacityStep LoadPhase RateCurve ScaleOut Scaling find_scale_out scaling_of",
}
