package offer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/records"
)

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
