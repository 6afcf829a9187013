"""The report of a run that is over: one value, as HTML, PDF and JSON.

``stored_source`` reads what is stored, ``build`` makes the value, ``render`` writes the page.
"""
