"""Trying networks and strategies on one machine: benchmarks, emulated computing."""
