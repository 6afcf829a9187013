"""Access control of the API, with sign-in, permissions by route and an audit log of writes."""
