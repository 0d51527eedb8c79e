package config_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestHelpHasTheBounds: a setting takes the ends of the range that its help states, and nothing beyond.
func TestHelpHasTheBounds(t *testing.T) {
	number := regexp.MustCompile(`\b([0-9]+) to ([0-9]+)[.:,]`)
	length := regexp.MustCompile(`\b([0-9]+[a-z]*) to ([0-9]+[a-z]+)[.:,]`)
	found, defaults := 0, config.Default()
	for _, s := range config.Settings() {
		refused := func(value string) bool {
			variable := config.Prefix + strings.ToUpper(strings.ReplaceAll(s.Key, ".", "_"))
			_, _, err := config.Load(config.Source{Environ: []string{variable + "=" + value}})
			return fault.FieldOf(err) == s.Key // an error of another one that has to follow does not count
		}
		var ends, beyond []string
		if _, err := strconv.Atoi(defaults.Value(s.Key)); err == nil && number.MatchString(s.Help) {
			ends = number.FindStringSubmatch(s.Help)[1:]
			for i, step := range []int{-1, 1} {
				n, err := strconv.Atoi(ends[i])
				require.NoError(t, err, s.Help)
				beyond = append(beyond, strconv.Itoa(n+step))
			}
		} else if _, err := time.ParseDuration(defaults.Value(s.Key)); err == nil && length.MatchString(s.Help) {
			ends = length.FindStringSubmatch(s.Help)[1:]
			for i, step := range []time.Duration{-1, 1} {
				d, err := time.ParseDuration(ends[i])
				require.NoError(t, err, s.Help)
				beyond = append(beyond, (d + step).String())
			}
		} else {
			continue
		}
		found++
		for i := range ends {
			require.False(t, refused(ends[i]), "%s: %s: refuses %s", s.Key, s.Help, ends[i])
			if !strings.Contains(s.Help, " 0: ") || beyond[i] != "0" {
				require.True(t, refused(beyond[i]), "%s: %s: takes %s", s.Key, s.Help, beyond[i])
			}
		}
	}
	require.Greater(t, found, 15, "the search is broken")
}
