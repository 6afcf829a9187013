"""Studies, which use several runs to answer one question.

    sweep   values of one or two fields, to see the effect and to find the knee
    search  the highest rate that meets the limits
    ab      the cost of one device state compared with another, in the order ABBA
    matrix  the rate of the device in each of its modes

The next trial depends only on the specification and on the results so far. A coordinator that
restarts will therefore continue a study from the stored rows. Each trial is a normal run with the
study as a label.
"""
