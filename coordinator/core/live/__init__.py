"""The same while a run goes on: where it stands, and what is new. Pure."""
