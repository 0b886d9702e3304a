"""The TFF process: shards of a cohort, broadcast, aggregation, server, boundary."""
