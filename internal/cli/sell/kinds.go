package sell

import (
	"context"
	"math"
	"slices"
	"strconv"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

const maxSpaceGB = 1_000_000_000 // an exabyte

// kind is one thing that a machine can sell.
type kind struct {
	name, title    string // gpu, GPU
	of, subtype    string // type and subtype of its offers
	unit, per      string // of its price
	amounts        []amount
	capabilities   func(n []uint64) *records.Capabilities // of the amounts, in their order
	example, short string
}

// amount is a number that a seller states by a flag.
type amount struct {
	flag, usage string
	least, most uint64 // least of memory: who writes 24 means GB
}

func kinds() []kind {
	return []kind{
		{
			name: "gpu", title: "GPU", of: "compute", subtype: "gpu", unit: "per-hour", per: "hour", short: "Sell the GPUs of this machine",
			example: "gpu --price 0.45 --city Suva --endpoint https://gpu.example.com/v1 --yes",
			amounts: []amount{
				{"gpu-memory-mb", "memory of each GPU, MB (default: what the driver says)", 256, math.MaxUint32},
				{"cpu-cores", "CPU cores (default: those of this machine)", 0, math.MaxUint32},
				{"memory-mb", "memory, MB (default: that of this machine)", 128, math.MaxUint64},
			},
			capabilities: func(n []uint64) *records.Capabilities {
				return &records.Capabilities{Compute: &records.Compute{CPUCores: uint32(n[1]), MemoryMB: n[2]}}
			},
		},
		{
			name: "storage", title: "Storage", of: "storage", unit: "per-gb-month", per: "GB and month", short: "Sell space on this machine's disk",
			example: "storage --price 0.02 --space-gb 500 --city Apia --endpoint https://disk.example.com --yes",
			amounts: []amount{{"space-gb", "space to sell, GB (default: what is free in the current directory)", 1, maxSpaceGB}},
			capabilities: func(n []uint64) *records.Capabilities {
				return &records.Capabilities{Storage: &records.Storage{TotalSpace: n[0] * 1e9, AvailableSpace: n[0] * 1e9}}
			},
		},
		{
			name: "cdn", title: "CDN", of: "cdn", unit: "per-gb", per: "GB", short: "Sell delivery of content from this machine",
			example: "cdn --price 0.03 --bandwidth-mbps 1000 --city Suva --endpoint https://edge.example.com --yes",
			amounts: []amount{{"bandwidth-mbps", "bandwidth to sell, Mbit/s", 0, math.MaxUint64}},
			capabilities: func(n []uint64) *records.Capabilities {
				return &records.Capabilities{CDN: &records.CDN{BandwidthMbps: n[0]}}
			},
		},
		{
			name: "bandwidth", title: "Bandwidth", of: "bandwidth", unit: "per-gb", per: "GB", short: "Sell an exit to the Internet through this machine",
			example: "bandwidth --price 0.004 --upload-mbps 100 --download-mbps 1000 --city Zürich --endpoint wg://exit.example.com:51820 --yes",
			amounts: []amount{{"upload-mbps", "upload to sell, Mbit/s", 0, math.MaxUint64}, {"download-mbps", "download to sell, Mbit/s", 0, math.MaxUint64}},
			capabilities: func(n []uint64) *records.Capabilities {
				return &records.Capabilities{Bandwidth: &records.Bandwidth{UploadMbps: n[0], DownloadMbps: n[1]}}
			},
		},
	}
}

// measure returns what is for sale. Flags go before what is found, and that goes before questions.
func (s *seller) measure(ctx context.Context, a *asker) (*records.Capabilities, error) {
	path, _ := s.Env("PATH")
	m := thisMachine(path)
	found := m.amounts()
	var gpus []records.GPU
	if s.subtype == "gpu" {
		var err error
		if gpus, err = s.findGPUs(ctx, a, m); err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(gpus, sharing); i >= 0 {
			s.Say("%s has no memory of its own: it shares that of the machine", gpus[i].Model)
			found["gpu-memory-mb"] = found["memory-mb"]
		} else if len(gpus) > 0 {
			found["gpu-memory-mb"] = strconv.FormatUint(uint64(gpus[0].MemoryMB), 10)
		}
	}
	for i, x := range s.amounts {
		if err := a.need(ctx, x.flag, found[x.flag]); err != nil {
			return nil, err
		}
		if n := s.n[i]; s.given(x.flag) && (n < x.least || n > x.most) {
			return nil, fault.Invalidf("--"+x.flag, n, "must be between %d and %d", x.least, x.most)
		}
	}
	sold := s.capabilities(s.n)
	if s.subtype != "gpu" {
		return sold, nil
	}
	most := maxGPUs
	if len(gpus) > 0 {
		most = len(gpus)
	}
	switch {
	case s.gpus < 1 || s.gpus > most:
		return nil, fault.Invalidf("--gpus", s.gpus, "must be between 1 and %d", most)
	case len(gpus) == 0:
		gpus = slices.Repeat([]records.GPU{{Model: modelOf(s.model), MemoryMB: uint32(s.n[0])}}, s.gpus)
	case s.given("gpus"):
		gpus = gpus[:s.gpus]
	}
	for i := range gpus {
		if sharing(gpus[i]) {
			gpus[i].MemoryMB = uint32(s.n[0])
		}
	}
	sold.Compute.GPUs = gpus
	return sold, nil
}

// sharing reports whether a GPU has no memory of its own.
func sharing(g records.GPU) bool { return g.MemoryMB == 0 }

// findGPUs returns the GPUs of the driver with the memory of the flag, if it is given. Without a driver it returns none
// and asks for the model.
func (s *seller) findGPUs(ctx context.Context, a *asker, m machine) (found []records.GPU, err error) {
	if !s.given("gpu-model") {
		var words string
		if found, words = m.gpus(ctx); words != "" {
			s.Say("nvidia-smi says: %s", words)
		}
	}
	if len(found) == 0 {
		if s.Terminal.Input {
			s.Say("no GPU was found: nvidia-smi names none")
		}
		return nil, a.need(ctx, "gpu-model", "")
	}
	if s.given("gpu-memory-mb") {
		for i := range found {
			found[i].MemoryMB = uint32(s.n[0])
		}
	}
	return found, nil
}

// given reports whether the user has set a flag.
func (s *seller) given(flag string) bool { return s.Cmd.Flags().Changed(flag) }
