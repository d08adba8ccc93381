package main

// #include "glue.h"
import "C"

import (
	"context"
	"os"
	"unsafe"

	"rallypoint/core/cli"
)

//export rpgo_main
func rpgo_main(argc C.int, argv **C.char) C.int {
	args := make([]string, 0, int(argc))
	for _, arg := range unsafe.Slice(argv, int(argc)) {
		args = append(args, C.GoString(arg))
	}
	return C.int(cli.Main(context.Background(), args, os.Stdout, os.Stderr))
}
