"""Tests of the notation: one file for each of its files that has rules of its own."""
