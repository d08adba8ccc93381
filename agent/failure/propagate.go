package failure

import (
	"encoding/json"
	"fmt"
	"os"
)

// Propagate writes the worker's error file to path, where the agent's own parent looks for the
// agent's error file, with the worker's exit code in the message. Without an error file of the
// worker it writes nothing.
func (f *Failure) Propagate(path string) error {
	if f.Data == nil || path == "" {
		return nil
	}
	text := f.Data
	var file map[string]json.RawMessage
	var message map[string]json.RawMessage
	if json.Unmarshal(text, &file) == nil && json.Unmarshal(file["message"], &message) == nil && message != nil && f.ExitCode != 0 {
		message["errorCode"] = json.RawMessage(fmt.Sprint(f.ExitCode))
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
