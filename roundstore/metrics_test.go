package roundstore

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"rallypoint/core/control"
	"rallypoint/internal/testkit"
)

// scrape reads /metrics as a Prometheus server would.
func scrape(t *testing.T, endpoint string) map[string]*dto.MetricFamily {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + endpoint + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		t.Fatalf("%v in:\n%s", err, body)
	}
	return families
}

// statusOf reads /status.
func statusOf(t *testing.T, endpoint string) (st control.Status) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + endpoint + "/status")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	testkit.Check(t, json.NewDecoder(resp.Body).Decode(&st))
	return st
}

// labelled returns the value of the sample whose only label has this value.
func labelled(f *dto.MetricFamily, value string) float64 {
	for _, m := range f.GetMetric() {
		if m.GetLabel()[0].GetValue() == value {
			return m.GetCounter().GetValue()
		}
	}
	return -1
}

// A process that hosts the control plane tells of its round stores, those that
// are closed included.
func TestRoundStoresAreInMetrics(t *testing.T) {
	endpoint := net.JoinHostPort("127.0.0.1", strconv.Itoa(testkit.FreePort(t)))
	m := open(t, "a", endpoint, 1, 1, nil)
	o := next(t, m)[0]
	c := dial(t, o)
	if err := c.Set(t.Context(), "key", []byte("value")); err != nil {
		t.Fatal(err)
	}
	families := scrape(t, endpoint)
	const operations, keys = "rallypoint_round_store_operations_total", "rallypoint_round_store_keys"
	if n := labelled(families[operations], "set"); n != 1 {
		t.Errorf("%v sets", n)
	}
	if n := families[keys].GetMetric()[0].GetGauge().GetValue(); n != 1 {
		t.Errorf("%v keys", n)
	}
	if n := labelled(families["rallypoint_round_store_refused_total"], "dialect"); n != 0 {
		t.Errorf("%v of another dialect", n)
	}

	next(t, m) // a new round, and a new store
	testkit.Eventually(t, "the store of the first round to be closed", func() bool {
		return scrape(t, endpoint)[keys].GetMetric()[0].GetGauge().GetValue() == 0
	})
	if n := labelled(scrape(t, endpoint)[operations], "set"); n != 1 {
		t.Errorf("%v sets after the store was closed", n)
	}
}
