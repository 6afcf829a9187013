#!/bin/sh
# Fails if the subject of a commit is not "area: imperative" with at most 72 characters.
#
# It checks the descendants of the commit that added this file, except merges. Without history, as
# in an archive or in a clone of one commit, there is nothing to check.
cd "$(dirname "$0")/.." || exit
[ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$(pwd -P)" ] || exit 0
added=$(git log --diff-filter=A --format=%H -- .ci/commit_subjects.sh | tail -n 1)
[ -n "$added" ] || exit 0
wrong=$(git log --ancestry-path --no-merges --format='%h %s' "$added..HEAD" |
    LC_ALL=C.UTF-8 grep -vP '^\w+ (?=.{1,72}$)[a-z0-9][a-z0-9 ,._/-]*: [^ ]')
[ -z "$wrong" ] || { echo "not \"area: imperative\" with at most 72 characters:" "$wrong" >&2; exit 1; }
