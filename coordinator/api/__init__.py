"""The coordinator over HTTP: one application, a router a topic, errors as RFC 9457 problems."""
