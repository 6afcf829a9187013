"""From figures to findings and a verdict. Pure."""
