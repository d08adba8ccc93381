package stacks

import (
	"context"
	"encoding/json"
	"strconv"
	"time"
)

// pySpyPatience bounds all of Trace.
const pySpyPatience = 2 * time.Second

// Trace adds the stacks that Collect did not get by py-spy, which reads the memory of a process
// without stopping it. run runs a command. Without py-spy, or its permission to read, nothing
// changes.
func Trace(ctx context.Context, targets []Target, workers []Group, run func(ctx context.Context, argv []string) ([]byte, error)) {
	ctx, cancel := context.WithTimeout(ctx, pySpyPatience)
	defer cancel()
	for i := range workers {
		w := &workers[i]
		if w.Source != SourceKernel || w.tells() || w.State == stateEnded || ctx.Err() != nil {
			continue
		}
		text, err := run(ctx, []string{"py-spy", "dump", "--nonblocking", "--json", "--pid", strconv.Itoa(targets[i].Pid)})
		if err != nil {
			continue
		}
		if threads := parsePySpy(text, targets[i].Pid); len(threads) > 0 {
			w.Source, w.Threads, w.State, w.Why = SourcePySpy, threads, "", ""
		}
	}
}

// parsePySpy returns the main thread of py-spy's answer.
func parsePySpy(text []byte, pid int) []Thread {
	var told []struct {
		ID     int `json:"os_thread_id"`
		Frames []struct {
			Name string `json:"name"`
			File string `json:"filename"`
			Line int    `json:"line"`
		} `json:"frames"`
	}
	if json.Unmarshal(text, &told) != nil {
		return nil
	}
	for _, thread := range told {
		if thread.ID != pid {
			continue
		}
		t := Thread{Main: true, Frames: []Frame{}, Cut: len(thread.Frames) > maxFrames}
		for _, f := range thread.Frames[:min(len(thread.Frames), maxFrames)] {
			t.Frames = append(t.Frames, newFrame(f.File, max(f.Line, 0), f.Name))
		}
		return []Thread{t}
	}
	return nil
}
