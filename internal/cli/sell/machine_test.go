package sell

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/records"
)

// TestGPUsAreWhatTheDriverNames plays nvidia-smi.
func TestGPUsAreWhatTheDriverNames(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the tool is a shell script")
	}
	for name, c := range map[string]struct {
		tool string
		want []records.GPU
	}{
		"two models": {
			tool: `test "$*" = "--query-gpu=name,memory.total --format=csv,noheader,nounits" && echo "NVIDIA H100 80GB HBM3, 81559
NVIDIA GeForce RTX 4090, 24564"`,
			want: []records.GPU{{Model: "H100 80GB HBM3", MemoryMB: 85520}, {Model: "RTX 4090", MemoryMB: 25757}},
		},
		"no memory told": {tool: `echo "NVIDIA L40S, [N/A]"`},
		"tool fails":     {tool: "echo Failed to initialize NVML; exit 18"},
		"none":           {},
	} {
		t.Run(name, func(t *testing.T) {
			m := machine{path: filepath.Join(t.TempDir(), "absent")}
			if c.tool != "" {
				folder := t.TempDir()
				require.NoError(t, os.WriteFile(filepath.Join(folder, "nvidia-smi"), []byte("#!/bin/sh\n"+c.tool+"\n"), 0o700))
				m.path += string(os.PathListSeparator) + folder
			}
			require.Equal(t, c.want, m.gpus(t.Context()))
		})
	}
}

func TestMemoryIsInMegabytes(t *testing.T) {
	m := machine{root: t.TempDir()}
	require.Empty(t, m.memoryMB())
	require.NoError(t, os.Mkdir(filepath.Join(m.root, "proc"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(m.root, "proc/meminfo"), []byte("MemTotal:       125000000 kB\nMemFree: 1 kB\n"), 0o600))
	require.Equal(t, "128000", m.memoryMB())
}

// TestPartialChecks: whoever sells at a path learns how others come to check it.
func TestPartialChecks(t *testing.T) {
	for endpoint, want := range map[string]string{
		"https://gpu.nowhere.net/v1?key=1": "without its path until its host names this peer: publish a TXT record of _blackhole.gpu.nowhere.net with the text peer=12D3a, or that line at https://gpu.nowhere.net/.well-known/blackhole",
		"http://11.0.0.1:8000/v1":          "without its path: only a host with a name of its own and TLS",
		"https://gpu.nowhere.net/":         "", "wg://exit.nowhere.net:51820": "", "https://gpu.example.com/v1": "",
	} {
		all := partial(records.Offer{Metadata: records.Metadata{Endpoints: []string{endpoint}}}, "12D3a")
		require.Len(t, all, min(len(want), 1), endpoint)
		require.Contains(t, strings.Join(all, ""), want)
	}
}
