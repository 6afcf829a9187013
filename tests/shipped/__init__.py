"""Tests of what leaves the checkout: each runs it as its user does."""
