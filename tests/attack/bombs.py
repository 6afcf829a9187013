"""Small things that are large once they are read: rows, files and answers that unfold in memory."""
