//go:build !long

package sharedlog

const long = false
