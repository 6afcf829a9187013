"""Service for agents on other hosts, with enrolment, access rights and HTTPS server."""
