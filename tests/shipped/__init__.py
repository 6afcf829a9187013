"""Tests that use the shipped artefacts like users do."""
