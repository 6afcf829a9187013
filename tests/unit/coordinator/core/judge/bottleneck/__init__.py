"""Tests for bottleneck causes and their evidence."""
