package sell

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/records"
)

// TestGPUsAreWhatTheDriverNames plays nvidia-smi and the driver's files.
func TestGPUsAreWhatTheDriverNames(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the tool is a shell script")
	}
	const driver = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 24\n"
	for name, c := range map[string]struct {
		tool, driver string
		want         []records.GPU
	}{
		"two models": {
			tool: `test "$*" = "--query-gpu=name,memory.total --format=csv,noheader,nounits" && echo "NVIDIA H100 80GB HBM3, 81559
NVIDIA GeForce RTX 4090, 24564"`,
			want: []records.GPU{{Model: "H100 80GB HBM3", MemoryMB: 85520}, {Model: "RTX 4090", MemoryMB: 25757}},
		},
		"no memory told": {tool: `echo "NVIDIA L40S, [N/A]"`},
		"tool fails":     {tool: "echo Failed to initialize NVML; exit 18", driver: driver, want: []records.GPU{{Model: "H100 80GB HBM3"}}},
		"driver only":    {driver: driver, want: []records.GPU{{Model: "H100 80GB HBM3"}}},
		"none":           {},
	} {
		t.Run(name, func(t *testing.T) {
			m := machine{path: filepath.Join(t.TempDir(), "absent"), root: t.TempDir()}
			if c.tool != "" {
				folder := t.TempDir()
				require.NoError(t, os.WriteFile(filepath.Join(folder, "nvidia-smi"), []byte("#!/bin/sh\n"+c.tool+"\n"), 0o700))
				m.path += string(os.PathListSeparator) + folder
			}
			if c.driver != "" {
				folder := filepath.Join(m.root, "proc/driver/nvidia/gpus/0000:01:00.0")
				require.NoError(t, os.MkdirAll(folder, 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(folder, "information"), []byte(c.driver), 0o600))
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
