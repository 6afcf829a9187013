"""What people and programs see: reports, charts, exports, metrics, feeds."""
