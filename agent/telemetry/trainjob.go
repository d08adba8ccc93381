package telemetry

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"rallypoint/agent/logs"
	"rallypoint/internal/background"
	"rallypoint/internal/backoff"
	"rallypoint/internal/printable"
)

// The variables of Kubeflow Trainer's controller, in a TrainJob whose status it takes from the
// training: the URL, and the paths of the certificate and of the token.
const (
	envTrainJobURL   = "KUBEFLOW_TRAINER_SERVER_URL"
	envTrainJobCA    = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
	envTrainJobToken = "KUBEFLOW_TRAINER_SERVER_TOKEN"
)

// envTotalSteps is how many steps the whole training has. With it the agent reports a TrainJob's
// status; else that is left to the script, whose reports ours would overwrite.
const envTotalSteps = "RALLYPOINT_TOTAL_STEPS"

const (
	trainJobPeriod  = 10 * time.Second
	trainJobTimeout = 5 * time.Second
	maxSecret       = 64 << 10 // bytes of the token
)

// trainerStatus is trainer.kubeflow.org/v1alpha1's TrainerStatus.
type trainerStatus struct {
	Progress  int              `json:"progressPercentage"`
	Remaining *int64           `json:"estimatedRemainingSeconds,omitempty"`
	Metrics   []trainJobMetric `json:"metrics"`
	Updated   time.Time        `json:"lastUpdatedTime"`
}

type trainJobMetric struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// trainJob reports the status of a job to Kubeflow Trainer.
type trainJob struct {
	url, token string
	total      int64
	status     *StatusTracker
	client     *http.Client
	log        *slog.Logger
	last       trainerStatus // that was reported, without its time
	told       bool          // that a report has failed
}

// ReportTrainJob reports the job's step, speed and end to Kubeflow Trainer while this node has group
// rank 0, if the environment says where to and envTotalSteps is there. stop sends what is new, and
// waits for that for a short time; succeeded makes the progress 100 %.
func ReportTrainJob(getenv func(string) string, status *StatusTracker, log *slog.Logger) (stop func(succeeded bool)) {
	total := getenv(envTotalSteps)
	if getenv(envTrainJobURL) == "" || total == "" {
		return func(bool) {}
	}
	t, err := newTrainJob(getenv, status, log)
	if err != nil {
		log.Warn("the status of the TrainJob is not reported: " + err.Error())
		return func(bool) {}
	}
	end := background.Run(context.Background(), func(ctx context.Context) {
		for backoff.Sleep(ctx, trainJobPeriod) {
			t.report(ctx, false)
		}
	})
	return func(succeeded bool) {
		end()
		ctx, cancel := context.WithTimeout(context.Background(), closePatience)
		defer cancel()
		t.report(ctx, succeeded)
		t.client.CloseIdleConnections()
	}
}

func newTrainJob(getenv func(string) string, status *StatusTracker, log *slog.Logger) (*trainJob, error) {
	t := &trainJob{url: getenv(envTrainJobURL), token: getenv(envTrainJobToken), status: status, log: log}
	var err error
	if t.total, err = strconv.ParseInt(getenv(envTotalSteps), 10, 64); err != nil || t.total < 1 {
		return nil, fmt.Errorf("%s is %q, which is no number of steps", envTotalSteps, getenv(envTotalSteps))
	}
	u, err := url.Parse(t.url)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%s is not an https URL", envTrainJobURL)
	}
	var roots *x509.CertPool
	if path := getenv(envTrainJobCA); path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		roots = x509.NewCertPool()
		if !roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificate", path)
		}
	}
	t.client = &http.Client{
		Timeout:       trainJobTimeout,
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, MaxConnsPerHost: 1, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the token is for this host
	}
	return t, nil
}

// report reports the status if it has changed. The first failure is logged.
func (t *trainJob) report(ctx context.Context, succeeded bool) {
	s, _ := t.status.read()
	if s.GroupRank != 0 || s.Progress == nil {
		return
	}
	now := t.now(&s, succeeded)
	if reflect.DeepEqual(now, t.last) {
		return
	}
	err := t.post(ctx, now)
	if err == nil {
		t.last = now
	} else if !t.told && ctx.Err() == nil {
		t.told = true
		t.log.Warn(fmt.Sprintf("the status of the TrainJob was not taken (said once): %v", err))
	}
}

func (t *trainJob) now(s *Status, succeeded bool) trainerStatus {
	step := min(max(s.Progress.Step, 0), t.total)
	now := trainerStatus{Progress: int(min(99, 100*float64(step)/float64(t.total))), Metrics: []trainJobMetric{
		{"training_step", strconv.FormatInt(s.Progress.Step, 10)},
		{"seconds_per_step", strconv.FormatFloat(s.Progress.SecondsPerStep, 'g', 4, 64)},
		{"restarts", strconv.Itoa(s.Restarts)},
		{"nodes", strconv.Itoa(s.Groups)},
	}}
	if perStep := s.Progress.SecondsPerStep; perStep > 0 && !s.Progress.Counted {
		left := int64(math.Ceil(perStep * float64(t.total-step)))
		now.Remaining = &left
	}
	if succeeded {
		now.Progress, now.Remaining = 100, new(int64)
	}
	return now
}

func (t *trainJob) post(ctx context.Context, s trainerStatus) error {
	s.Updated = time.Now().UTC()
	body, err := json.Marshal(map[string]trainerStatus{"trainerStatus": s})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	if t.token != "" { // which Kubernetes renews
		text, err := logs.ReadRegular(t.token, maxSecret)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(text)))
	}
	response, err := t.client.Do(request)
	if err != nil {
		if of, ok := errors.AsType[*url.Error](err); ok {
			err = of.Err
		}
		return err
	}
	defer response.Body.Close()
	answer, _ := io.ReadAll(io.LimitReader(response.Body, 300))
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return errors.New(printable.Text(response.Status + " " + string(answer)))
	}
	return nil
}
