package filelog

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// roleVariable names what the test binary does when it runs itself again as another node.
const roleVariable = "FILELOG_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role, os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// play is the main function of the other processes.
func play(role string, args []string) int {
	var err error
	switch role {
	case "append":
		err = playAppend(args[0], args[1])
	case "narrow":
		err = playNarrow(args[0], args[1])
	case "forbidden":
		err = playForbidden(args[0])
	case "listing":
		err = playListing(args[0])
	case "clock":
		err = playClock()
	case "dying":
		err = playDying(args[0], args[1])
	default:
		err = fmt.Errorf("no such role: %s", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
