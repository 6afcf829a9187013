"""Output for users and programs, such as reports, charts, exports, metrics and event streams."""
