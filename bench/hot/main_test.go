package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	paths, err := parse(table)
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	require.Equal(t, table, format(paths), "write it by -update")
	_, err = parse("lock ./x ^B$ 1 2")
	require.ErrorContains(t, err, "5 fields")
	_, err = parse("lock ./x ^B$ 1 2 many")
	require.ErrorContains(t, err, "many")
}

func TestLeastOf(t *testing.T) {
	line := func(bytes, allocs string) string {
		return "BenchmarkX/n=1-2   \t 100\t 123 ns/op\t 4.5 cycles/s\t " + bytes + " B/op\t " + allocs + " allocs/op\n"
	}
	least, err := leastOf("goos: linux\n" + line("900", "12") + line("850", "13") + line("870", "12") + "PASS\n")
	require.NoError(t, err)
	require.Equal(t, figures{12, 850}, least)
	_, err = leastOf(line("1", "1"))
	require.ErrorContains(t, err, "1 results")
}

func TestGrew(t *testing.T) {
	base := figures{allocs: 100, bytes: 10_000}
	for _, f := range []figures{base, {105, 11_000}, {0, 0}} {
		require.False(t, f.grew(base), f)
	}
	for _, f := range []figures{{106, 10_000}, {100, 11_001}} {
		require.True(t, f.grew(base), f)
	}
	require.False(t, figures{1, 64}.grew(figures{}))
	require.True(t, figures{2, 0}.grew(figures{}))
}
