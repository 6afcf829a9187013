"""Who may do what over the API: sign-in by token or Entra ID, rights by route, audit of writes."""
