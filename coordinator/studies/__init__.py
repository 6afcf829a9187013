"""Studies: several runs that together answer one question.

    sweep   how does a figure change over the values of one or two fields, and where is the knee?
    search  what is the highest rate that keeps the goals?
    ab      what does one state of the device cost against another, in ABBA order?
    matrix  what does the device carry in each of its modes?

A study's next trial follows from its specification and the results so far, and from nothing else,
so a coordinator that restarts resumes by reading. Each trial is a run like any other, labelled
with its study.
"""
