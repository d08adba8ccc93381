// Command capi is the C library librallypoint.so, whose contract is
// include/rallypoint.h. Nothing here decides anything: the exported functions
// convert their arguments, call the packages that do, and convert the results.
//
// A call comes in at a C function, which checks what must not enter Go (a forked
// process) and what is only C (NULL, sizes of structs; guard.h), and calls the
// Go function of the same name with the prefix rpgo_. exports.map keeps everything
// but rp_* out of the library's symbol table.
//
//	go build -buildmode=c-shared -tags grpcnotrace -ldflags "-extldflags -Wl,--version-script=$PWD/capi/exports.map" ./capi
package main

// #cgo CFLAGS: -I${SRCDIR}/../include -std=c11 -D_GNU_SOURCE -fvisibility=hidden -Wall -Wextra
// #include "glue.h"
import "C"

import "rallypoint"

// main is not run: the library has no main of its own.
func main() {}

// version lives as long as the library, in C memory.
var version = C.CString(rallypoint.Version())

//export rpgo_version
func rpgo_version() *C.char { return version }
