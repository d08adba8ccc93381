"""The library: loading it, its functions and structs, its log."""
