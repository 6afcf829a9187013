"""From a specification to a plan, its price and its dates. Pure."""
