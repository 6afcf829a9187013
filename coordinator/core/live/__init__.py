"""Live view of a running burst, with status, new seconds and findings. Pure.

``EXPORTS`` lists the names that other folders can import, by module.
"""

EXPORTS = {
    "certainty_now": "Certainty find_certainty is_due stop_at",
    "live_view": """
        LiveCounter LiveFigures LiveFinding LiveSeconds LiveSnapshot LiveStatus PlannedCells
        changed_seconds counter_message empty_snapshot final_snapshot full_snapshot
        incremental_snapshot live_status make_snapshot newest_of seconds_message shown_burst
    """,
    "progress": """
        Progress complete_seconds mixed_progress progress progress_of_part progress_of_series
    """,
    "status": "BurstPhase BurstRows BurstStatus RunState RunStatus VISIBLE_S derive",
}
