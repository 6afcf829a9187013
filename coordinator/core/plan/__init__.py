"""Planning, which turns a specification into a plan with a price and start times. Pure."""
