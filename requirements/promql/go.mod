// Prometheus's own parser of expressions, which checks docs/alerts.yml and
// docs/grafana.json for the tests, built by make into .tools: a module of its own, so that
// what it needs stays out of the project's go.mod. The rules themselves are tried by
// Debian's promtool, which would need the clients of all clouds to be built.
module rallypoint/requirements/promql

go 1.26.0

require github.com/prometheus/prometheus v0.313.5

require (
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/dennwc/varint v1.0.0 // indirect
	github.com/grafana/regexp v0.0.0-20250905093917-f7b3be9d1853 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/prometheus/client_golang v1.23.2 // indirect
	github.com/prometheus/client_model v0.6.2 // indirect
	github.com/prometheus/common v0.69.0 // indirect
	github.com/prometheus/procfs v0.16.1 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
)
