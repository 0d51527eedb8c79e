package term

import (
	"bytes"
	"context"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const provider = "12D3KooWLnf1GdmD17qaAn8sYACPYggSSps1gQD1aL3gpEUuqCVB"

// widest is the width of the widest line.
func widest(text string) int {
	most := 0
	for line := range strings.Lines(text) {
		most = max(most, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")))
	}
	return most
}

func TestTableOnANarrowScreen(t *testing.T) {
	g := Table([]string{"PEER", "LATENCY", "AGENT", "ADDRESSES"}, [][]string{
		{provider, "1.2 ms", "blackholed/v1.2.3", "/ip4/192.0.2.1/tcp/4801 /ip4/192.0.2.1/udp/4801/quic-v1"},
	})
	require.Contains(t, g.On(Screen{}), provider, "a pipe gets everything")
	require.Equal(t, strings.Join([]string{
		"PEER       LATENCY  AGENT              ADDRESSES",
		"…pEUuqCVB  1.2 ms   blackholed/v1.2.3  /ip4/192.0.2.1/tcp/4801",
		"                                       /ip4/192.0.2.1/udp/4801/quic-v1",
		"",
	}, "\n"), g.On(Screen{Columns: 80}))
}

// TestSpareColumns: a narrow screen does without the spare columns, the first of them first, and a pipe has all.
func TestSpareColumns(t *testing.T) {
	g := Table([]string{"ID", "NAME", "PRICE", "ENDPOINT"}, [][]string{{"gpu-1", "Two GPUs", "1 USD", "https://gpu.example.com"}})
	g.Spare = []string{"NAME", "ENDPOINT"}
	header := func(columns int) string {
		first, _, _ := strings.Cut(g.On(Screen{Columns: columns}), "\n")
		return strings.Join(strings.Fields(first), " ")
	}
	require.Equal(t, "ID NAME PRICE ENDPOINT", header(0))
	require.Equal(t, "ID NAME PRICE ENDPOINT", header(80))
	require.Equal(t, "ID PRICE ENDPOINT", header(40))
	require.Equal(t, "ID PRICE", header(30))
	require.Equal(t, "ID PRICE", header(5), "what is not spare stays")
}

// TestTableFits draws tables: none is wider than the screen, and the last column loses nothing.
func TestTableFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		columns := rapid.IntRange(1, 5).Draw(t, "columns")
		cell := rapid.OneOf(rapid.StringMatching(`[a-z]{0,40}( [a-z]{1,30}){0,4}`), rapid.Just(provider))
		row := rapid.SliceOfN(cell, columns, columns)
		g := Table(row.Draw(t, "header"), rapid.SliceOfN(row, 0, 4).Draw(t, "rows"))
		text := g.On(Screen{Columns: 80})
		require.LessOrEqual(t, widest(text), 80, text)
		if columns == 1 {
			whole := regexp.MustCompile(`\s`)
			require.Equal(t, whole.ReplaceAllString(ShortPeers(g.On(Screen{})), ""), whole.ReplaceAllString(ShortPeers(text), ""))
		}
	})
}

func TestTableColours(t *testing.T) {
	g := Table([]string{"ID", "STATUS"}, [][]string{{"a", "UP"}, {"b\x1b[31m", "DOWN"}})
	require.Equal(t, "ID      STATUS\na       UP\nb\ufffd[31m  DOWN\n", g.On(Screen{}))
	text := g.On(Screen{Columns: 80, colour: true})
	require.Contains(t, text, "\x1b[32mUP\x1b[m")
	require.Contains(t, text, "\x1b[31mDOWN\x1b[m")
	require.NotContains(t, text, "b\x1b[31m", "a otherPeer_top chooses no colours")

	size := func() (int, int) { return 100, 24 }
	for env, colour := range map[string]bool{"A=1": true, "NO_COLOR=1": false, "NO_COLOR=": true, "TERM=dumb": false} {
		c := Console{Terminal: Terminal{Size: size}, Environ: []string{env}}
		require.Equal(t, Screen{Columns: 100, colour: colour}, c.Screen(), env)
	}
	require.Equal(t, Screen{}, (&Console{}).Screen(), "a pipe has no colours")
}

// TestProgress shows a line for a call of three seconds, and none for a short one or in a file.
func TestProgress(t *testing.T) {
	for name, c := range map[string]struct {
		took     time.Duration
		terminal bool
		shown    string
	}{
		"long":         {3500 * time.Millisecond, true, "waiting: 3s of at most 5s"},
		"short":        {999 * time.Millisecond, true, ""},
		"not terminal": {3500 * time.Millisecond, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var errs, out bytes.Buffer
				con := &Console{Stderr: &errs, Stdout: &out, Terminal: Terminal{Errors: c.terminal}}
				stop := con.Wait(context.Background(), "waiting", 5*time.Second)
				time.Sleep(c.took)
				require.NoError(t, AsTable.Print(con, Document{Table: Plain("answer\n")}))
				shown := errs.String()
				require.Contains(t, shown, c.shown)
				require.Equal(t, c.shown != "", strings.HasSuffix(shown, "\r\x1b[K"), "%q", shown)
				time.Sleep(time.Minute)
				stop()
				require.Equal(t, shown, errs.String(), "nothing follows the answer")
				require.Equal(t, "answer\n", out.String())
			})
		})
	}
}
