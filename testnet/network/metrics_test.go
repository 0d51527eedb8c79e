package network

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDistrusting(t *testing.T) {
	const text = `# HELP blackhole_discovery_refused_total Refused records, messages and answers, by reason.
blackhole_discovery_queries_total 4
blackhole_discovery_refused_total{reason="answer_unauthentic"} %d
blackhole_discovery_refused_total{reason="rate"} 7
`
	of := func(text string) map[string]float64 {
		found, err := parseMetrics(strings.NewReader(text))
		require.NoError(t, err)
		return found
	}
	found, err := distrusting(of(fmt.Sprintf(text, 0)))
	require.NoError(t, err)
	require.Empty(t, found)
	found, err = distrusting(of(fmt.Sprintf(text, 3)))
	require.NoError(t, err)
	require.Equal(t, []string{`blackhole_discovery_refused_total{reason="answer_unauthentic"} 3`}, found)
	_, err = distrusting(of("blackhole_refused_total 1\n"))
	require.ErrorContains(t, err, "there is no metric blackhole_discovery_*")
}

func TestMetrics(t *testing.T) {
	found, err := parseMetrics(strings.NewReader("# HELP go_goroutines Number\ngo_goroutines 42\nheap 1.5e+06\nlabelled{a=\"b c\"} 3\nodd NaN x\n\n"))
	require.NoError(t, err)
	require.Equal(t, map[string]float64{"go_goroutines": 42, "heap": 1.5e6, `labelled{a="b c"}`: 3}, found)
}
