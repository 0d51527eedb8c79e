package sell

import (
	"context"
	"slices"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/blackhole/blackhole/internal/cli/doctor"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

const maxSpaceGB = 1_000_000_000 // an exabyte

// kind is one thing that a machine can sell.
type kind struct {
	name, title    string // gpu, GPU
	of, subtype    string // type and subtype of its offers
	unit, per      string // of its price
	flags          func(f *pflag.FlagSet, v *values)
	find           func(ctx context.Context, a *asker, m machine, v *values) error
	capabilities   func(v *values) *records.Capabilities
	example, short string
}

// values are the flags about capacities.
type values struct {
	model              string
	gpuMB              uint32
	gpus               int
	found              []records.GPU
	cores              uint32
	memoryMB           uint64
	spaceGB            uint64
	mbps, up, download uint64
}

func kinds() []kind {
	return []kind{
		{
			name: "gpu", title: "GPU", of: "compute", subtype: "gpu", unit: "per-hour", per: "hour", short: "Sell the GPUs of this machine",
			example: "gpu --price 0.45 --city Suva --endpoint https://gpu.example.com/v1 --yes",
			flags: func(f *pflag.FlagSet, v *values) {
				f.StringVar(&v.model, "gpu-model", "", "model of the GPUs: H100 (default: what the driver says)")
				f.Uint32Var(&v.gpuMB, "gpu-memory-mb", 0, "memory of each GPU, MB (default: what the driver says)")
				f.IntVar(&v.gpus, "gpus", 1, "number of GPUs (default with a driver: all)")
				f.Uint32Var(&v.cores, "cpu-cores", 0, "CPU cores (default: those of this machine)")
				f.Uint64Var(&v.memoryMB, "memory-mb", 0, "memory, MB (default: that of this machine)")
			},
			find:         findGPU,
			capabilities: gpuCapabilities,
		},
		{
			name: "storage", title: "Storage", of: "storage", unit: "per-gb-month", per: "GB and month", short: "Sell space on this machine's disk",
			example: "storage --price 0.02 --space-gb 500 --city Apia --endpoint https://disk.example.com --yes",
			flags: func(f *pflag.FlagSet, v *values) {
				f.Uint64Var(&v.spaceGB, "space-gb", 0, "space to sell, GB (default: what is free in the current directory)")
			},
			find: func(ctx context.Context, a *asker, _ machine, v *values) error {
				found := ""
				if free, err := doctor.DiskFree("."); err == nil && free >= 1e9 {
					found = strconv.FormatUint(free/1e9, 10)
				}
				err := a.need(ctx, "space-gb", "Space to sell, GB", found)
				if err == nil && (v.spaceGB == 0 || v.spaceGB > maxSpaceGB) {
					err = fault.Invalidf("--space-gb", v.spaceGB, "must be between 1 and %d", maxSpaceGB)
				}
				return err
			},
			capabilities: func(v *values) *records.Capabilities {
				return &records.Capabilities{Storage: &records.Storage{TotalSpace: v.spaceGB * 1e9, AvailableSpace: v.spaceGB * 1e9}}
			},
		},
		{
			name: "cdn", title: "CDN", of: "cdn", unit: "per-gb", per: "GB", short: "Sell delivery of content from this machine",
			example: "cdn --price 0.03 --bandwidth-mbps 1000 --city Suva --endpoint https://edge.example.com --yes",
			flags: func(f *pflag.FlagSet, v *values) {
				f.Uint64Var(&v.mbps, "bandwidth-mbps", 0, "bandwidth to sell, Mbit/s")
			},
			find: func(ctx context.Context, a *asker, _ machine, _ *values) error {
				return a.need(ctx, "bandwidth-mbps", "Bandwidth to sell, Mbit/s", "")
			},
			capabilities: func(v *values) *records.Capabilities {
				return &records.Capabilities{CDN: &records.CDN{BandwidthMbps: v.mbps}}
			},
		},
		{
			name: "bandwidth", title: "Bandwidth", of: "bandwidth", unit: "per-gb", per: "GB", short: "Sell an exit to the Internet through this machine",
			example: "bandwidth --price 0.004 --upload-mbps 100 --download-mbps 1000 --city Zürich --endpoint wg://exit.example.com:51820 --yes",
			flags: func(f *pflag.FlagSet, v *values) {
				f.Uint64Var(&v.up, "upload-mbps", 0, "upload to sell, Mbit/s")
				f.Uint64Var(&v.download, "download-mbps", 0, "download to sell, Mbit/s")
			},
			find: func(ctx context.Context, a *asker, _ machine, _ *values) error {
				if err := a.need(ctx, "upload-mbps", "Upload to sell, Mbit/s", ""); err != nil {
					return err
				}
				return a.need(ctx, "download-mbps", "Download to sell, Mbit/s", "")
			},
			capabilities: func(v *values) *records.Capabilities {
				return &records.Capabilities{Bandwidth: &records.Bandwidth{UploadMbps: v.up, DownloadMbps: v.download}}
			},
		},
	}
}

// findGPU finds the GPUs, cores and memory. Flags go before what the driver says.
func findGPU(ctx context.Context, a *asker, m machine, v *values) error {
	model, memory := "", ""
	if !a.cmd.Flags().Changed("gpu-model") {
		v.found = m.gpus(ctx)
	}
	if len(v.found) > 0 {
		model = v.found[0].Model
		if mb := v.found[0].MemoryMB; mb > 0 {
			memory = strconv.FormatUint(uint64(mb), 10)
		}
	} else if a.con.Terminal.Input {
		a.con.Say("no GPU was found: neither nvidia-smi nor its driver names one")
	}
	given := a.cmd.Flags().Changed("gpu-memory-mb") || memory == ""
	for _, q := range []struct{ flag, question, found string }{
		{"gpu-model", "Model of the GPUs (H100, L40S)", model},
		{"gpu-memory-mb", "Memory of each GPU, MB", memory},
		{"cpu-cores", "CPU cores", m.cores()},
		{"memory-mb", "Memory, MB", m.memoryMB()},
	} {
		if err := a.need(ctx, q.flag, q.question, q.found); err != nil {
			return err
		}
	}
	most := maxGPUs
	if len(v.found) > 0 {
		most = len(v.found)
	}
	switch chosen := a.cmd.Flags().Changed("gpus"); {
	case v.gpus < 1 || v.gpus > most:
		return fault.Invalidf("--gpus", v.gpus, "must be between 1 and %d", most)
	case len(v.found) == 0:
		v.found = slices.Repeat([]records.GPU{{Model: v.model, MemoryMB: v.gpuMB}}, v.gpus)
	case chosen:
		v.found = v.found[:v.gpus]
	}
	for i := range v.found {
		if given {
			v.found[i].MemoryMB = v.gpuMB
		}
	}
	return nil
}

func gpuCapabilities(v *values) *records.Capabilities {
	return &records.Capabilities{Compute: &records.Compute{CPUCores: v.cores, MemoryMB: v.memoryMB, GPUs: v.found}}
}
