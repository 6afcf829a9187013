"""All scenarios of the field's notebook in the lab with real traffic (``make scenarios``)."""
