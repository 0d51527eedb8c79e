package daemon

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/config"
)

var update = flag.Bool("update", false, "write the table of metrics into docs/metrics.md")

const root = "../.."

// metric is a registered metric, with or without values.
type metric struct {
	help   string
	labels []string
}

// metricsOf returns all metrics of a peer.
func metricsOf(t *testing.T) map[string]metric {
	t.Helper()
	c := config.Default()
	c.Auth.Enabled = "false"
	p := startWith(t, c, t.TempDir()).parts
	descriptions := make(chan *prometheus.Desc)
	go func() {
		p.gatherer.Describe(descriptions)
		close(descriptions)
	}()
	form := regexp.MustCompile(`^Desc\{fqName: "(\w+)", help: ("(?:[^"\\]|\\.)*"),.* constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	constant := regexp.MustCompile(`(\w+)=`)
	all := map[string]metric{}
	for d := range descriptions {
		m := form.FindStringSubmatch(d.String())
		require.NotNil(t, m, d.String())
		one := metric{}
		require.NoError(t, json.Unmarshal([]byte(m[2]), &one.help))
		for _, l := range constant.FindAllStringSubmatch(m[3], -1) {
			one.labels = append(one.labels, l[1])
		}
		one.labels = append(one.labels, strings.FieldsFunc(m[4], func(r rune) bool { return r == ',' || r == ' ' })...)
		all[m[1]] = one
	}
	return all
}

// TestMetricsAreDocumented compares the own metrics with the list of docs/metrics.md.
func TestMetricsAreDocumented(t *testing.T) {
	all := metricsOf(t)
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !strings.HasPrefix(name, "blackhole_") && !strings.HasPrefix(name, "manifest_") {
			continue
		}
		m, labels := all[name], ""
		if len(m.labels) > 0 {
			labels = " (`" + strings.Join(m.labels, "`, `") + "`)"
		}
		help := regexp.MustCompile(`, by [a-z ,]+\.$`).ReplaceAllString(m.help, ".") // the labels say so
		fmt.Fprintf(&b, "- `%s`%s: %s\n", name, labels, help)
	}
	path := filepath.Join(root, "docs", "metrics.md")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	const lead = "All metrics, with their labels:\n\n"
	before, rest, ok := strings.Cut(string(data), lead)
	require.True(t, ok, "the list of metrics is missing")
	table, after, _ := strings.Cut(rest, "\n\n")
	if *update {
		text := before + lead + strings.TrimSuffix(b.String(), "\n") + "\n\n" + after
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return
	}
	require.Equal(t, strings.TrimSuffix(b.String(), "\n"), table, "run go test ./internal/daemon -run Documented -update")
}

// TestConditionsAreDocumented: the operator's page has a row for each condition.
func TestConditionsAreDocumented(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	require.NoError(t, err)
	for _, name := range condition.Names() {
		require.Regexp(t, "(?m)^\\| .*`"+name+"`.* \\|", string(data))
	}
}

// TestDeployedExpressions: the dashboard and the alerts use only metrics and labels that a peer has.
func TestDeployedExpressions(t *testing.T) {
	all := metricsOf(t)
	labels := map[string]bool{"instance": true, "job": true, "le": true} // of Prometheus
	for _, m := range all {
		for _, l := range m.labels {
			labels[l] = true
		}
	}
	for _, path := range []string{"deploy/grafana/blackholed.json", "deploy/prometheus/alerts.yml", "deploy/prometheus/alerts_test.yml"} {
		data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(path)))
		require.NoError(t, err)
		text := strings.ReplaceAll(string(data), `\"`, `"`)
		used := regexp.MustCompile(`\b(blackhole|manifest|process|libp2p|go)_[a-z0-9_]+`).FindAllString(text, -1)
		require.Greater(t, len(used), 10, path)
		for _, name := range used {
			base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
			_, plain := all[name]
			_, histogram := all[base]
			require.True(t, plain || histogram || strings.HasPrefix(name, "process_"), "%s: no peer has the metric %s", path, name)
		}
		for _, form := range []string{`[{,](\w+)=~?"`, `\{\{ ?(?:\$labels\.)?(\w+) ?\}\}`} {
			for _, m := range regexp.MustCompile(form).FindAllStringSubmatch(text, -1) {
				require.True(t, labels[m[1]], "%s: no metric has the label %s", path, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`by \(([^)]*)\)`).FindAllStringSubmatch(text, -1) {
			for l := range strings.SplitSeq(m[1], ", ") {
				require.True(t, labels[l], "%s: no metric has the label %s", path, l)
			}
		}
		for _, m := range regexp.MustCompile(`blackhole_condition\{name="(\w+)"`).FindAllStringSubmatch(text, -1) {
			require.Contains(t, condition.Names(), m[1], path)
		}
	}
}
