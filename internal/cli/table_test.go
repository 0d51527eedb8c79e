package cli

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

	"github.com/blackhole/blackhole/pkg/records"
)

// widest is the width of the widest line.
func widest(text string) int {
	most := 0
	for line := range strings.Lines(text) {
		most = max(most, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")))
	}
	return most
}

func TestTableOnANarrowScreen(t *testing.T) {
	g := table([]string{"PEER", "LATENCY", "AGENT", "ADDRESSES"}, [][]string{
		{provider, "1.2 ms", "blackholed/v1.2.3", "/ip4/192.0.2.1/tcp/4801 /ip4/192.0.2.1/udp/4801/quic-v1"},
	})
	require.Contains(t, g.on(screen{}), provider, "a pipe gets everything")
	require.Equal(t, strings.Join([]string{
		"PEER       LATENCY  AGENT              ADDRESSES",
		"…pEUuqCVB  1.2 ms   blackholed/v1.2.3  /ip4/192.0.2.1/tcp/4801",
		"                                       /ip4/192.0.2.1/udp/4801/quic-v1",
		"",
	}, "\n"), g.on(screen{columns: 80}))
}

// TestSpareColumns: a narrow screen does without the spare columns, the first of them first, and a pipe has all.
func TestSpareColumns(t *testing.T) {
	g := table([]string{"ID", "NAME", "PRICE", "ENDPOINT"}, [][]string{{"gpu-1", "Two GPUs", "1 USD", "https://gpu.example.com"}})
	g.spare = []string{"NAME", "ENDPOINT"}
	header := func(columns int) string {
		first, _, _ := strings.Cut(g.on(screen{columns: columns}), "\n")
		return strings.Join(strings.Fields(first), " ")
	}
	require.Equal(t, "ID NAME PRICE ENDPOINT", header(0))
	require.Equal(t, "ID NAME PRICE ENDPOINT", header(80))
	require.Equal(t, "ID PRICE ENDPOINT", header(40))
	require.Equal(t, "ID PRICE", header(30))
	require.Equal(t, "ID PRICE", header(5), "what is not spare stays")
}

func TestCapacity(t *testing.T) {
	gpu := records.GPU{Model: "H100", MemoryMB: 80_000}
	for want, c := range map[string]*records.Capabilities{
		"-": {},
		"2x H100 80 GB, 1x L4, 64-core CPU, 512 GB": {Compute: &records.Compute{CPUCores: 64, MemoryMB: 512_000, GPUs: []records.GPU{gpu, {Model: "L4"}, gpu}}},
		"1x 24 GB":                 {Compute: &records.Compute{GPUs: []records.GPU{{MemoryMB: 24_000}}}},
		"4.5 TB free":              {Storage: &records.Storage{TotalSpace: 9e12, AvailableSpace: 4.5e12}},
		"1 kB free":                {Storage: &records.Storage{AvailableSpace: 1000}},
		"200/50 Mbit/s down/up":    {Bandwidth: &records.Bandwidth{UploadMbps: 50, DownloadMbps: 200}},
		"2 Gbit/s":                 {CDN: &records.CDN{BandwidthMbps: 2000}},
		"1-core CPU, 18.4 EB free": {Compute: &records.Compute{CPUCores: 1}, Storage: &records.Storage{AvailableSpace: 1<<64 - 1}},
	} {
		require.Equal(t, want, capacityOf(&records.View{Offer: records.Offer{Capabilities: c}}))
	}
	require.Equal(t, "-", capacityOf(&records.View{}))
}

// TestTableFits draws tables: none is wider than the screen, and the last column loses nothing.
func TestTableFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		columns := rapid.IntRange(1, 5).Draw(t, "columns")
		cell := rapid.OneOf(rapid.StringMatching(`[a-z]{0,40}( [a-z]{1,30}){0,4}`), rapid.Just(provider))
		row := rapid.SliceOfN(cell, columns, columns)
		g := table(row.Draw(t, "header"), rapid.SliceOfN(row, 0, 4).Draw(t, "rows"))
		text := g.on(screen{columns: 80})
		require.LessOrEqual(t, widest(text), 80, text)
		if columns == 1 {
			whole := regexp.MustCompile(`\s`)
			require.Equal(t, whole.ReplaceAllString(shortPeers(g.on(screen{})), ""), whole.ReplaceAllString(shortPeers(text), ""))
		}
	})
}

func TestTableColours(t *testing.T) {
	g := table([]string{"ID", "STATUS"}, [][]string{{"a", "UP"}, {"b\x1b[31m", "DOWN"}})
	require.Equal(t, "ID      STATUS\na       UP\nb\ufffd[31m  DOWN\n", g.on(screen{}))
	text := g.on(screen{columns: 80, colour: true})
	require.Contains(t, text, "\x1b[32mUP\x1b[m")
	require.Contains(t, text, "\x1b[31mDOWN\x1b[m")
	require.NotContains(t, text, "b\x1b[31m", "a stranger chooses no colours")

	size := func() (int, int) { return 100, 24 }
	for env, colour := range map[string]bool{"A=1": true, "NO_COLOR=1": false, "NO_COLOR=": true, "TERM=dumb": false} {
		c := console{terminal: Terminal{Size: size}, environ: []string{env}}
		require.Equal(t, screen{columns: 100, colour: colour}, c.screen(), env)
	}
	require.Equal(t, screen{}, (&console{}).screen(), "a pipe has no colours")
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
				con := &console{stderr: &errs, stdout: &out, terminal: Terminal{Errors: c.terminal}}
				stop := con.wait(context.Background(), "waiting", 5*time.Second)
				time.Sleep(c.took)
				require.NoError(t, formatTable.print(con, document{table: plain("answer\n")}))
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
