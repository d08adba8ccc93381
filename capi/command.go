package main

// #include "glue.h"
import "C"

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"rallypoint/cli"
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
		takeEnvironment()
		code = cli.Process(args, os.Stdout, os.Stderr)
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "rallypoint:", err)
	}
	return C.int(code)
}

// takeEnvironment makes the process's environment as it is now that of the command:
// Go's own copy is what the process was started with.
func takeEnvironment() {
	now := environment()
	os.Clearenv()
	for _, entry := range now {
		if name, value, found := strings.Cut(entry, "="); found && name != "" {
			_ = os.Setenv(name, value)
		}
	}
}
