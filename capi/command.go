package main

// #include "glue.h"
import "C"

import (
	"fmt"
	"os"
	"unsafe"

	"rallypoint/core/cli"
)

// exitDefect is the exit code of a command that broke: EX_SOFTWARE.
const exitDefect = 70

//export rpgo_main
func rpgo_main(argc C.int, argv **C.char) C.int {
	args := make([]string, 0, int(argc))
	for _, arg := range unsafe.Slice(argv, int(argc)) {
		args = append(args, C.GoString(arg))
	}
	code := exitDefect
	err := protect(func() error {
		code = cli.Process(args, os.Stdout, os.Stderr)
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "rallypoint:", err)
	}
	return C.int(code)
}
