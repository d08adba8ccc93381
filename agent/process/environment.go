package process

import (
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// LookupEnv returns the last value of a variable in a list of NAME=value.
func LookupEnv(env []string, name string) (string, bool) {
	for i := len(env) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(env[i], name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// Getenv returns what looks a variable up in a list of NAME=value; "" if there is none.
func Getenv(env []string) func(name string) string {
	return func(name string) string {
		value, _ := LookupEnv(env, name)
		return value
	}
}

// TempDir returns, with the values that get has of variables, the folder for temporary files that Python's tempfile would choose: the first of
// TMPDIR, TEMP, TMP, /tmp, /var/tmp, /usr/tmp that is a folder to which this process may write.
// A batch system's TMPDIR often does not exist inside a container. If there is none, it is the first
// that is named, so that the error of its use names it.
func TempDir(get func(name string) string) string {
	var list []string
	for _, name := range []string{"TMPDIR", "TEMP", "TMP"} {
		if folder := get(name); folder != "" {
			list = append(list, folder)
		}
	}
	list = append(list, "/tmp", "/var/tmp", "/usr/tmp")
	if i := slices.IndexFunc(list, writableFolder); i >= 0 {
		return list[i]
	}
	return list[0]
}

func writableFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir() && unix.Access(path, unix.W_OK|unix.X_OK) == nil
}
