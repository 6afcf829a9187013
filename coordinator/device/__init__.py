"""Access to the device under test (byte counters, telemetry, capacity and policy)."""
