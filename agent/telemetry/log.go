package telemetry

import (
	"errors"
	"fmt"

	"rallypoint/core/rendezvous"
)

// logLines writes lines for users to the log.
type logLines struct{ run *Run }

// Take implements Consumer.
func (l *logLines) Take(_ State, message Message) {
	log := l.run.Log
	switch m := message.(type) {
	case WorkersStarted:
		log.Info(m.Summary)
	case WorkerExited:
		if p := m.Worker; p.Lost {
			log.Error(fmt.Sprintf("the exit code of the worker of local rank %d (pid %d) is lost, so it counts as failed: "+
				"SIGCHLD is ignored in this process, or something else in it waits for all children", p.Local, p.Pid))
		}
	case Stalled:
		if m.Text == "" {
			m.Text = "the job makes steps again" // as loud as the alarm that it ends
		}
		log.Warn(m.Text)
	case Stopping:
		if m.Warning != "" {
			log.Warn(m.Warning)
		}
	case Restarting:
		log.Warn(m.Text)
	case ShutDown:
		if m.Err != nil && !errors.Is(m.Err, rendezvous.ErrGraceful) { // the agent says why it is not needed
			log.Warn("ending the rendezvous: " + m.Err.Error())
		}
	}
}
