package agent

import (
	"encoding/json"
	"fmt"
	"os"
)

// handUp writes the root cause's error file to the one that the agent itself was
// given, with the worker's exit code in its message, so that whoever started the
// agent finds it (A86). Without an error file of the worker nothing is written.
func (e *FailedError) handUp(path string) error {
	root := e.Root()
	if root.Data == nil || path == "" {
		return nil
	}
	text := root.Data
	var file map[string]json.RawMessage
	var message map[string]json.RawMessage
	if json.Unmarshal(text, &file) == nil && json.Unmarshal(file["message"], &message) == nil && message != nil && root.ExitCode != 0 {
		message["errorCode"] = json.RawMessage(fmt.Sprint(root.ExitCode))
		inner, err := json.Marshal(message)
		if err != nil {
			return err
		}
		file["message"] = inner
		if text, err = json.Marshal(file); err != nil {
			return err
		}
	}
	if err := os.WriteFile(path, text, 0o666); err != nil {
		return fmt.Errorf("cannot hand the error file up: %w", err)
	}
	return nil
}
