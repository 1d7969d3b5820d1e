"""Rows on their way to a rank: columns checked on the driver, cached in the rank, cut into batches."""
