"""Tests of the shipped artefacts, executed as users do."""
