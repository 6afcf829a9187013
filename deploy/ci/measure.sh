#!/bin/sh
# Step in a pipeline to launch a scenario, wait for its verdict, and compare it with a previous run.
# Environment:
#   SCENARIO         scenario to launch
#   BROADSIDE_API    address of `broadside serve`
#   BROADSIDE_TOKEN  token of an operator
#   OVERRIDES        one FIELD=VALUE per line
#   GATES            regression gates, one per line, for example `received < -3%`
#   BASELINE         run id; default: the newest run of the scenario with the label baseline=accepted
#                    that was completed, has a rate and did not fail
#   ACCEPT           true to add this label to the new run. The first run will always get it. After
#                    that a baseline is not changed, so that a slow change of the runs is detected.
#   RESULTS          folder to write to; default: broadside
# It writes summary.md, verdict.xml and, with gates, gates.xml to RESULTS. Exit codes: 0 pass, 1 fail,
# 2 inconclusive, 3 usage error, 4 could not run. The worst one of the verdict and the gates is used.
set -eu
results=${RESULTS:-broadside}
newline='
'
mkdir -p "$results"
# Delete the files of a previous run.
rm -f "$results/summary.md" "$results/verdict.xml" "$results/gates.xml"

with() { # with OPTION LINES COMMAND...: run the command with the option for each line
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
broadside verdict "$run" -o md --junit "$results/verdict.xml" >"$results/summary.md" || :

if [ -n "${GATES-}" ] && [ -n "$baseline" ]; then
    gates=0
    with --fail-if "$GATES" broadside compare "$baseline" "$run" -o md \
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
