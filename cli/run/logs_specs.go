package run

import (
	_ "embed"
	"encoding/json"
	"errors"
	"time"

	"rallypoint/agent/logs"
)

// logsSpecsScript asks a plug-in of group torchrun.logs_specs where workers write.
//
//go:embed logs_specs.py
var logsSpecsScript string

// planEnd bounds how long a plug-in for logs may take to end: a signal may have come
// while it hangs.
const planEnd = 5 * time.Second

// setPlanner loads the plug-in for logs, if one is named. close lets it end.
func (c *config) setPlanner(o *options, interpreter string, env []string) (close func(), err error) {
	if o.logsSpecs == "" {
		return func() {}, nil
	}
	arguments, err := json.Marshal(map[string]any{
		"log_dir": o.logDir, "redirects": o.redirects, "tee": o.tee, "local_ranks_filter": c.spec.Logs.Ranks,
	})
	if err != nil {
		return nil, err
	}
	h, err := startHelper(interpreter, logsSpecsScript, env, o.logsSpecs, string(arguments))
	if why := errHelper(""); errors.As(err, &why) {
		return nil, usagef("argument --logs-specs: %s", why)
	}
	if err != nil {
		return nil, err
	}
	c.spec.Logs.Planner = logs.NewPlanner(h.conn, pluginPatience+leeway)
	return func() { h.close(planEnd) }, nil
}
