package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"rallypoint/cli/run"
	"rallypoint/internal/yamlfile"
)

// configFlag is the option --config of a command: a file that gives its other options
// where neither the command line nor the environment does.
type configFlag struct{ path string }

const envConfig = "RALLYPOINT_CONFIG"

// unconfigured are the flags that neither a variable nor a file gives.
var unconfigured = []string{"config", "help"}

func variableOf(flag string) string {
	if flag == "log-level" {
		return run.EnvLogLevel
	}
	return "RALLYPOINT_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// apply sets the flags that the command line leaves out: by their variables, else by the
// file. An empty variable counts as none.
func (c *configFlag) apply(flags *pflag.FlagSet) error {
	settings, err := c.load()
	if err != nil {
		return err
	}
	var names []string
	flags.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(unconfigured, f.Name) {
			names = append(names, f.Name)
		}
	})
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if !slices.Contains(names, key) {
			return fmt.Errorf("%s: unknown key %q%s", c.path, key, strings.ReplaceAll(run.Suggestion(key, names), "--", ""))
		}
		values, err := textsOf(flags.Lookup(key), settings[key])
		if err != nil {
			shown := settings[key]
			if text, ok := shown.(string); ok { // "7" is no number
				shown = strconv.Quote(text)
			}
			return fmt.Errorf("%s: %s is %v, %w", c.path, key, shown, err)
		}
		settings[key] = values
	}
	for _, name := range names {
		flag := flags.Lookup(name)
		if flag.Changed {
			continue
		}
		source, values := variableOf(name), []string(nil)
		if text := os.Getenv(source); text != "" {
			values = []string{text}
			if isList(flag) {
				values = strings.Split(text, ",")
			}
		} else if given, ok := settings[name]; ok {
			source, values = c.path+": "+name, given.([]string)
		}
		for _, value := range values {
			if flag.Value.Set(value) != nil {
				return fmt.Errorf("%s is %q, expected %s", source, value, expectedBy(flag))
			}
			flag.Changed = true
		}
	}
	return nil
}

const maxConfig = 64 << 10

// load reads the file; nil without one.
func (c *configFlag) load() (map[string]any, error) {
	c.path = cmp.Or(c.path, os.Getenv(envConfig))
	if c.path == "" {
		return nil, nil
	}
	file, err := os.OpenFile(c.path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO is refused, not waited for
	if err != nil {
		var at *os.PathError // its text begins with the name of the call
		if errors.As(err, &at) {
			err = at.Err
		}
		return nil, failed("cannot read the configuration %s: %w", c.path, err)
	}
	defer file.Close()
	if err := trusted(file); err != nil {
		return nil, failed("the configuration %s is refused: %w", c.path, err)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxConfig+1))
	switch {
	case err != nil:
		return nil, failed("cannot read the configuration %s: %w", c.path, err)
	case len(text) > maxConfig:
		return nil, fmt.Errorf("%s has more than %d bytes", c.path, maxConfig)
	}
	settings, err := yamlfile.Read(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.path, err)
	}
	return settings, nil
}

// trusted refuses a file over which another user than this one and root rules.
func trusted(file *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return err
	}
	switch self := os.Geteuid(); {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return errors.New("it is not a regular file")
	case st.Uid != 0 && int(st.Uid) != self:
		return fmt.Errorf("it belongs to user %d, this process to user %d; it has to belong to this user or to root", st.Uid, self)
	case st.Mode&(unix.S_IWGRP|unix.S_IWOTH) != 0:
		return fmt.Errorf("users other than its owner may write to it (mode %04o); run chmod go-w on it", st.Mode&0o7777)
	}
	return nil
}

func isList(flag *pflag.Flag) bool { return flag.Value.Type() == "stringArray" }

// textsOf are the values of a key as the command line would give them. A value has the
// type of its flag: text that looks like a number is no number.
func textsOf(flag *pflag.Flag, value any) ([]string, error) {
	items, list := value.([]any)
	if !list {
		items = []any{value}
	}
	if list && !isList(flag) {
		return nil, errors.New("expected " + expectedBy(flag))
	}
	texts := make([]string, len(items))
	for i, item := range items {
		fits := false
		switch item := item.(type) {
		case bool:
			texts[i], fits = strconv.FormatBool(item), flag.Value.Type() == "bool"
		case int64:
			texts[i], fits = strconv.FormatInt(item, 10), strings.HasPrefix(flag.Value.Type(), "int")
		case string:
			texts[i], fits = item, slices.Contains([]string{"string", "stringArray", "duration"}, flag.Value.Type())
		}
		if !fits {
			return nil, errors.New("expected " + expectedBy(flag))
		}
	}
	return texts, nil
}

func expectedBy(flag *pflag.Flag) string {
	switch flag.Value.Type() {
	case "bool":
		return "true or false"
	case "int", "int64":
		return "a whole number"
	case "duration":
		return "a time such as 90s or 12h"
	case "stringArray":
		return "text or a list of texts"
	}
	return "text (in quotes, if it looks like a number)"
}
