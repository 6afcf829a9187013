"""From agents' rows to figures of one burst. Pure."""
