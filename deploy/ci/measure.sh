#!/bin/sh
# A pipeline's step: launch a scenario, wait for its verdict, hold it against an earlier run.
# Environment: SCENARIO; BROADSIDE_API and BROADSIDE_TOKEN (an operator's) of a `broadside serve`;
# OVERRIDES, one FIELD=VALUE a line; GATES, one a line, such as `received < -3%`; BASELINE, a run id
# (default: the scenario's newest run to its end that has a rate and did not fail); RESULTS, a folder
# (default: broadside).
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
    baseline=$(broadside runs --scenario "$SCENARIO" --state finished --json | python3 -c '
import json, sys
for run in json.load(sys.stdin):
    outcome = run["outcome"]
    if outcome["verdict"] != "fail" and outcome["fleet_received_bits_per_second"]:
        sys.exit(print(run["run_id"]))')
fi
run=$(with --set "${OVERRIDES-}" broadside launch "$SCENARIO" --detach)
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
    echo "No earlier run of $SCENARIO to compare with: the gates begin with the next." >>"$results/summary.md"
fi
exit "$code"
