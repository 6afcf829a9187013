"""What runs on every generator host: pulls jobs, fires the engine at the instant, reports."""
