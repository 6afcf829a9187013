#!/bin/sh
# A pipeline's step: launch a scenario, wait for its verdict, hold it against an earlier run.
# Environment: SCENARIO; BROADSIDE_API and BROADSIDE_TOKEN (an operator's) of a `broadside serve`;
# OVERRIDES, one FIELD=VALUE a line; GATES, one a line, such as `received < -3%`; BASELINE, a run id
# (default: the scenario's newest run with the label baseline=accepted that went to its end, has a rate
# and did not fail); ACCEPT=true, to give this run that label, as the first one gets by itself: else a
# baseline stays, however slowly runs drift from it; RESULTS, a folder (default: broadside).
# Leaves summary.md, verdict.xml and, with gates, gates.xml in RESULTS. Exit codes: 0 pass,
# 1 fail, 2 inconclusive, 3 wrong usage, 4 could not run; the worst of verdict and gates.
set -eu
results=${RESULTS:-broadside}
newline='
'
mkdir -p "$results"
rm -f "$results/summary.md" "$results/verdict.xml" "$results/gates.xml" # of a run before

with() { # with OPTION LINES COMMAND...: the command with the option before each line
    option=$1 lines=$2
    shift 2
    IFS=$newline
    for line in $lines; do
        [ -z "$line" ] || set -- "$@" "$option" "$line"
    done
    unset IFS
    "$@"
}

baseline=${BASELINE-}
if [ -n "${GATES-}" ] && [ -z "$baseline" ]; then
    baseline=$(broadside baseline "$SCENARIO")
fi
accepted=
if [ "${ACCEPT-}" = true ] || { [ -n "${GATES-}" ] && [ -z "$baseline" ]; }; then
    accepted=labels.baseline=accepted
fi
run=$(with --set "${OVERRIDES-}$newline$accepted" broadside launch "$SCENARIO" --detach)
trap 'broadside abort "$run" --reason "the pipeline was stopped" || :' HUP INT TERM
code=0
broadside watch "$run" --plain >/dev/null || code=$?
trap - HUP INT TERM
[ "$code" -le 2 ] || exit "$code"
broadside verdict "$run" --format md --junit "$results/verdict.xml" >"$results/summary.md" || :

if [ -n "${GATES-}" ] && [ -n "$baseline" ]; then
    gates=0
    with --fail-if "$GATES" broadside compare "$baseline" "$run" --format md \
        --junit "$results/gates.xml" >>"$results/summary.md" || gates=$?
    [ "$gates" -le 2 ] || exit "$gates"
    if [ "$gates" = 1 ] || [ "$code" = 0 ]; then code=$gates; fi
elif [ -n "${GATES-}" ]; then
    echo "No run of $SCENARIO to compare with: this is the baseline of the next ones, unless it fails." >>"$results/summary.md"
fi
if [ -n "$baseline" ] && [ -n "$accepted" ]; then
    echo "Accepted as the baseline of the next runs, unless it fails." >>"$results/summary.md"
fi
exit "$code"
