// Command promql reads a JSON array of Prometheus's expressions from its standard input,
// and prints for each what it selects: a JSON array of arrays of
// {"metric": NAME, "labels": {NAME: [OPERATOR, VALUE]}, "by": [NAMES]}
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	if err := selectors(parser.NewParser(parser.Options{})); err != nil {
		fmt.Fprintln(os.Stderr, "promql:", err)
		os.Exit(1)
	}
}

// selector is one selected metric, and the labels by which the expression groups.
type selector struct {
	Metric string               `json:"metric"`
	Labels map[string][2]string `json:"labels"`
	By     []string             `json:"by"`
}

func selectors(reader parser.Parser) error {
	var expressions []string
	if err := json.NewDecoder(os.Stdin).Decode(&expressions); err != nil {
		return err
	}
	all := [][]selector{}
	for _, text := range expressions {
		expr, err := reader.ParseExpr(text)
		if err != nil {
			return fmt.Errorf("%q: %w", text, err)
		}
		found := []selector{}
		parser.Inspect(expr, func(n parser.Node, path []parser.Node) error {
			v, ok := n.(*parser.VectorSelector)
			if !ok {
				return nil
			}
			s := selector{Labels: map[string][2]string{}, By: []string{}}
			for _, m := range v.LabelMatchers {
				if m.Name == labels.MetricName {
					s.Metric = m.Value
				} else {
					s.Labels[m.Name] = [2]string{m.Type.String(), m.Value}
				}
			}
			for _, above := range path {
				if a, ok := above.(*parser.AggregateExpr); ok && !a.Without {
					s.By = append(s.By, a.Grouping...)
				}
			}
			found = append(found, s)
			return nil
		})
		all = append(all, found)
	}
	return json.NewEncoder(os.Stdout).Encode(all)
}
