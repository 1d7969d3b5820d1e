"""Benchmarks: a folder for each page of results, with the page, its benchmarks, its tables and its samples."""
