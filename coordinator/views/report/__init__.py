"""Report of a finished run as HTML, PDF or JSON.

``stored_source`` reads the stored data, ``build`` creates the report, and ``render`` writes the
page.
"""
