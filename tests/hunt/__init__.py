"""The hunt for a wrong verdict: fleets with planted truth, written apart from the engine."""
