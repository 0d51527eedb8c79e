package sell

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/records"
)

// TestGPUsAreWhatTheDriverNames plays nvidia-smi, as machines answered.
func TestGPUsAreWhatTheDriverNames(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the tool is a shell script")
	}
	for name, c := range map[string]struct {
		tool, words string
		want        []records.GPU
	}{
		"two models": {
			tool: `test "$*" = "--query-gpu=name,memory.total --format=csv,noheader,nounits" && echo "NVIDIA H100 80GB HBM3, 81559
NVIDIA GeForce RTX 4090, 24564"`,
			want: []records.GPU{{Model: "H100 80GB HBM3", MemoryMB: 85520}, {Model: "RTX 4090", MemoryMB: 25757}},
		},
		"no memory of its own":     {tool: `echo "NVIDIA GB10, [N/A]"`, want: []records.GPU{{Model: "GB10"}}},
		"memory not told, besides": {tool: `echo "NVIDIA A10, 23028"; echo "NVIDIA Thor, [Not Supported]"`, want: []records.GPU{{Model: "A10", MemoryMB: 24146}, {Model: "Thor"}}},
		"one is lost": {
			tool: `echo "NVIDIA A100-SXM4-80GB, 81920"; echo "Unable to determine the device handle for GPU 0000:41:00.0: GPU is lost.  Reboot the system to recover this GPU"; exit 15`,
			want: []records.GPU{{Model: "A100-SXM4-80GB", MemoryMB: 85899}}, words: "Unable to determine the device handle for GPU 0000:41:00.0: GPU is lost. Reboot the system to recover this GPU exit status 15",
		},
		"a row of a lost one": {tool: `echo "NVIDIA A10, [GPU is lost]"; echo "NVIDIA A10, 23028"`, want: []records.GPU{{Model: "A10", MemoryMB: 24146}}, words: "NVIDIA A10, [GPU is lost]"},
		"tool fails": {
			tool: "echo NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver. >&2; exit 9", words: "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver. exit status 9",
		},
		"mismatch": {tool: "echo Failed to initialize NVML: Driver/library version mismatch; exit 18", words: "Failed to initialize NVML: Driver/library version mismatch exit status 18"},
		"none":     {},
	} {
		t.Run(name, func(t *testing.T) {
			m := machine{path: filepath.Join(t.TempDir(), "absent")}
			if c.tool != "" {
				folder := t.TempDir()
				require.NoError(t, os.WriteFile(filepath.Join(folder, "nvidia-smi"), []byte("#!/bin/sh\n"+c.tool+"\n"), 0o700))
				m.path += string(os.PathListSeparator) + folder
			}
			found, words := m.gpus(t.Context())
			require.Equal(t, c.want, found)
			require.Equal(t, c.words, words)
		})
	}
}

// TestAmountsOfRecordedMachines: a container offers what it may use, not what its host has.
func TestAmountsOfRecordedMachines(t *testing.T) {
	const host = "MemTotal:       125000000 kB\nMemFree: 1 kB\n"
	none := errors.New("no limit")
	for name, c := range map[string]struct {
		files map[string]string
		limit uint64 // 0: none
		free  uint64
		want  map[string]string
	}{
		"host": {
			files: map[string]string{"proc/meminfo": host, "proc/self/cgroup": "0::/user.slice/session-1.scope\n", "sys/fs/cgroup/user.slice/cpu.max": "max 100000\n"},
			free:  122_460_045_312, want: map[string]string{"cpu-cores": "32", "memory-mb": "128000", "space-gb": "122"},
		},
		"container with its own name space": {
			files: map[string]string{"proc/meminfo": host, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"},
			limit: 4 << 30, free: 9e9, want: map[string]string{"cpu-cores": "2", "memory-mb": "4294", "space-gb": "9"},
		},
		"container that sees the path of its host": {
			files: map[string]string{"proc/meminfo": host, "proc/self/cgroup": "0::/docker/4f0c\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"},
			limit: 1e9, want: map[string]string{"cpu-cores": "4", "memory-mb": "1000"},
		},
		"pod below a slice with less": {
			files: map[string]string{
				"proc/meminfo": host, "proc/self/cgroup": "0::/kubepods.slice/pod1.slice/cri.scope\n",
				"sys/fs/cgroup/kubepods.slice/pod1.slice/cri.scope/cpu.max": "800000 100000\n", "sys/fs/cgroup/kubepods.slice/pod1.slice/cpu.max": "300000 100000\n",
			},
			limit: 8e9, want: map[string]string{"cpu-cores": "3", "memory-mb": "8000"},
		},
		"control groups, version 1": {
			files: map[string]string{
				"proc/meminfo": host, "proc/self/cgroup": "5:memory:/docker/4f0c\n4:cpu,cpuacct:/docker/4f0c\n1:name=systemd:/docker/4f0c\n",
				"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
			},
			limit: 2e9, want: map[string]string{"cpu-cores": "1", "memory-mb": "2000"},
		},
		"version 1 without a limit": {
			files: map[string]string{
				"proc/meminfo": host, "proc/self/cgroup": "4:cpu,cpuacct:/\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
				"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
			},
			limit: 9223372036854771712, want: map[string]string{"cpu-cores": "32", "memory-mb": "128000"},
		},
		"less than a core, and a small disk": {
			files: map[string]string{"proc/meminfo": host, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"},
			free:  999_999_999, want: map[string]string{"memory-mb": "128000"},
		},
		"unreadable": {
			files: map[string]string{"proc/meminfo": "MemTotal: much", "proc/self/cgroup": "0\n::\nx", "sys/fs/cgroup/cpu.max": "max"},
			want:  map[string]string{"cpu-cores": "32"},
		},
		"another system": {want: map[string]string{"cpu-cores": "32"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := machine{root: t.TempDir(), cores: 32}
			m.limit = func() (uint64, error) {
				if c.limit == 0 {
					return 0, none
				}
				return c.limit, nil
			}
			m.free = func(string) (uint64, error) { return c.free, nil }
			for file, text := range c.files {
				file = filepath.Join(m.root, file)
				require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
				require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			}
			require.Equal(t, c.want, m.amounts())
		})
	}
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
