"""A node's part in a run, and what endpoints and backends mean. No torch is needed."""
