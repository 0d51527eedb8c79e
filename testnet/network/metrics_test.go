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
