"""Key-value stores over the library. No torch is needed."""
