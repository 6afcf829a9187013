"""Core logic for planning, measuring and judging runs, without clock or I/O."""
