package sell

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/internal/platform/disk"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	toolTime = 5 * time.Second // longest run of nvidia-smi, which hangs with a broken driver
	maxGPUs  = 64              // more than one machine holds
	maxWords = 300             // bytes of what a failing tool says
	mebibyte = 1.048576        // megabytes
)

// machine finds out what this computer, or the container that the program runs in, has.
type machine struct {
	path  string                       // list of folders of programs, in the form of PATH
	root  string                       // of the files about the system: "/"
	cores int                          // that the program may use
	limit func() (uint64, error)       // of the memory of its control group, in bytes
	free  func(string) (uint64, error) // bytes on the disk of a directory
}

func thisMachine(path string) machine {
	return machine{path: path, root: "/", cores: runtime.NumCPU(), limit: memlimit.FromCgroup, free: disk.Free}
}

// amounts are what the machine has of each flag; what is not known is absent.
func (m machine) amounts() map[string]string {
	found := map[string]string{}
	put := func(flag string, n uint64) {
		if n > 0 {
			found[flag] = strconv.FormatUint(n, 10)
		}
	}
	put("cpu-cores", uint64(min(float64(m.cores), m.quota())))
	put("memory-mb", m.memory()/1e6)
	if free, err := m.free("."); err == nil {
		put("space-gb", free/1e9)
	}
	return found
}

// gpus returns the GPUs that nvidia-smi names, with memory 0 for those without their own. It returns none if the tool
// is missing. words are what the tool says besides, of a GPU that is lost for example.
func (m machine) gpus(ctx context.Context) (found []records.GPU, words string) {
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
		var said []string
		for line := range bytes.Lines(out) {
			text := strings.TrimSpace(string(line))
			name, memory, _ := strings.Cut(text, ",")
			memory = strings.TrimSpace(memory)
			mib, bad := strconv.ParseUint(memory, 10, 31)
			switch {
			case text == "":
			case bad != nil && memory != "[N/A]" && memory != "[Not Supported]":
				// This line is no row, or its GPU does not answer.
				said = append(said, text)
			case len(found) < maxGPUs:
				found = append(found, records.GPU{Model: modelOf(name), MemoryMB: uint32(float64(mib) * mebibyte)})
			}
		}
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			said = append(said, strings.TrimSpace(string(failed.Stderr)))
		}
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if err != nil {
			said = append(said, err.Error())
		}
		return found, clean.Text(strings.Join(strings.Fields(strings.Join(said, " ")), " "), maxWords)
	}
	return nil, ""
}

// modelOf is the name that buyers search for: a search for H100 is a search for models that begin so.
func modelOf(name string) string {
	name = strings.TrimSpace(name)
	for _, maker := range []string{"NVIDIA ", "Tesla ", "GeForce "} {
		name = strings.TrimPrefix(name, maker)
	}
	return name
}

// memory is the memory in bytes: the limit of the control group, or that of the computer if it is less or there is
// none. It is 0 on systems that do not tell it.
func (m machine) memory() (n uint64) {
	text, _ := os.ReadFile(filepath.Join(m.root, "proc/meminfo"))
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "MemTotal:" {
			if kib, err := strconv.ParseUint(fields[1], 10, 53); err == nil {
				n = kib * 1024
			}
		}
	}
	if limit, err := m.limit(); err == nil && limit > 0 && (limit < n || n == 0) && limit < math.MaxInt64 {
		n = limit
	}
	return n
}

// quota is the least number of cores that the control groups of the program allow, which may be a fraction. Without a
// limit it is infinite. The runtime of Go rounds it up, and to 2 at least, so it is no amount to sell.
func (m machine) quota() float64 {
	least := math.Inf(1)
	text, _ := os.ReadFile(filepath.Join(m.root, "proc/self/cgroup"))
	for line := range strings.Lines(string(text)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3) // cgroups(7): number, controllers, path
		if len(part) < 3 {
			continue
		}
		folder, files := "sys/fs/cgroup", []string{"cpu.max"}
		if part[1] != "" {
			folder, files = filepath.Join(folder, part[1]), []string{"cpu.cfs_quota_us", "cpu.cfs_period_us"}
		}
		for at := filepath.Join("/", part[2]); ; at = filepath.Dir(at) { // in a container the path may be that outside
			var all []byte
			for _, file := range files {
				text, _ := os.ReadFile(filepath.Join(m.root, folder, at, file))
				all = append(append(all, text...), ' ')
			}
			if n := strings.Fields(string(all)); len(n) == 2 {
				most, err1 := strconv.ParseFloat(n[0], 64)
				period, err2 := strconv.ParseFloat(n[1], 64)
				if err1 == nil && err2 == nil && most > 0 && period > 0 {
					least = min(least, most/period)
				}
			}
			if at == "/" {
				break
			}
		}
	}
	return least
}
