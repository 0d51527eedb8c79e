package sell

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/records"
)

const (
	toolTime = 5 * time.Second // longest run of nvidia-smi, which hangs with a broken driver
	maxGPUs  = 64              // more than one machine holds
	mebibyte = 1.048576        // megabytes
)

// machine finds out what this computer has.
type machine struct {
	path string // list of folders of programs, in the form of PATH
	root string // of the files about the system: "/"
}

// gpus returns the GPUs that nvidia-smi names. It returns none if the tool is missing or fails.
func (m machine) gpus(ctx context.Context) (found []records.GPU) {
	ctx, cancel := context.WithTimeout(ctx, toolTime)
	defer cancel()
	for _, folder := range filepath.SplitList(m.path) {
		tool, err := exec.LookPath(filepath.Join(folder, "nvidia-smi"))
		if err != nil {
			continue
		}
		cmd := exec.CommandContext(ctx, tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
		cmd.WaitDelay = time.Second // a child of the tool may hold its output
		out, err := cmd.Output()
		if err != nil {
			return nil
		}
		for line := range bytes.Lines(out) {
			name, memory, _ := strings.Cut(string(line), ",")
			mib, err := strconv.ParseUint(strings.TrimSpace(memory), 10, 31)
			if err != nil || len(found) == maxGPUs {
				continue
			}
			found = append(found, records.GPU{Model: modelOf(name), MemoryMB: uint32(float64(mib) * mebibyte)})
		}
		return found
	}
	return nil
}

// modelOf is the name that buyers search for: a search for H100 is a search for models that begin so.
func modelOf(name string) string {
	name = strings.TrimSpace(name)
	for _, maker := range []string{"NVIDIA ", "Tesla ", "GeForce "} {
		name = strings.TrimPrefix(name, maker)
	}
	return name
}

// memoryMB is the memory in MB, or "" on systems that do not tell it in a file.
func (m machine) memoryMB() string {
	text, err := os.ReadFile(filepath.Join(m.root, "proc/meminfo"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "MemTotal:" {
			if kib, err := strconv.ParseUint(fields[1], 10, 63); err == nil {
				return strconv.FormatUint(kib*1024/1e6, 10)
			}
		}
	}
	return ""
}
