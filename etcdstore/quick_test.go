//go:build !long

package etcdstore

import "flag"

// A model's history asks a real etcd a thousand times: make test-etcd-versions runs 100 of them.
func init() { _ = flag.Set("rapid.checks", "25") }
