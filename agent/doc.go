// Package agent runs the worker processes of one node: it takes its place in
// each round of a rendezvous, gives the workers their ranks and environment,
// watches, stops and restarts them, keeps their logs and reports their failures.
//
// The behaviour is docs/spec/agent.md. How it differs from torchrun is docs/deviations.md.
package agent
