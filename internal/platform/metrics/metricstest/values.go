// Package metricstest reads metrics in tests.
package metricstest

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
)

// Values returns the counters and gauges of a registry, and the number of observations of its histograms, by name and label
// values: "name{a,b}". The labels are sorted by name.
func Values(t assert.TestingT, from prometheus.Gatherer) map[string]float64 {
	values := map[string]float64{}
	families, err := from.Gather()
	assert.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			values[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return values
}
