package run

import (
	"strconv"
	"strings"
)

func (c *config) setConsole(o *options, _ environ) error {
	l := &c.spec.Logs
	if o.jobRanks != "" {
		for text := range strings.SplitSeq(o.jobRanks, ",") {
			rank, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil || rank < 0 {
				return usagef("argument --ranks-filter: %q is not a list of ranks, such as 0,8", o.jobRanks)
			}
			l.GlobalRanks = append(l.GlobalRanks, rank)
		}
	}
	if o.foldLogs && o.keepDaemons {
		return usagef("argument --fold-logs: what workers leave behind (--keep-daemons) would lose its output when this process, which folds it, ends")
	}
	l.Fold = o.foldLogs
	return nil
}
