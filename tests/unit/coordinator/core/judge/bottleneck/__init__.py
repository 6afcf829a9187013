"""Tests of the causes of a bottleneck and of their evidence."""
