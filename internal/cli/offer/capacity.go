package offer

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/pkg/records"
)

// capacityOf names what an offer sells, in decimal units as the offer has them. It leaves missing figures out.
func capacityOf(v *records.View) string {
	c := v.Capabilities
	if c == nil {
		return "-"
	}
	var parts []string
	if c.Compute != nil {
		parts = append(parts, processors(c.Compute)...)
	}
	if s := c.Storage; s != nil && s.AvailableSpace > 0 {
		parts = append(parts, decimal(float64(s.AvailableSpace), "B")+" free")
	}
	if b := c.Bandwidth; b != nil && b.UploadMbps+b.DownloadMbps > 0 {
		parts = append(parts, fmt.Sprintf("%d/%d Mbit/s down/up", b.DownloadMbps, b.UploadMbps))
	}
	if d := c.CDN; d != nil && d.BandwidthMbps > 0 {
		parts = append(parts, decimal(float64(d.BandwidthMbps)*1e6, "bit/s"))
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// processors lists the GPUs, which buyers ask for first, cores and memory of a compute offer.
func processors(c *records.Compute) (parts []string) {
	var models []string
	count := map[string]int{}
	for _, g := range c.GPUs {
		name := strings.TrimSpace(g.Model + " " + memory(uint64(g.MemoryMB)))
		if count[name]++; count[name] == 1 {
			models = append(models, name)
		}
	}
	for _, name := range models {
		parts = append(parts, strings.TrimSpace(strconv.Itoa(count[name])+"x "+name))
	}
	if c.CPUCores > 0 {
		parts = append(parts, strconv.FormatUint(uint64(c.CPUCores), 10)+"-core CPU")
	}
	if c.MemoryMB > 0 {
		parts = append(parts, memory(c.MemoryMB))
	}
	return parts
}

func memory(mb uint64) string {
	if mb == 0 {
		return ""
	}
	return decimal(float64(mb)*1e6, "B")
}

// decimal shows an amount with three digits and a decimal prefix: 48 GB.
func decimal(n float64, unit string) string {
	prefixes := []string{"", "k", "M", "G", "T", "P", "E"}
	i := 0
	for n >= 999.5 && i < len(prefixes)-1 {
		n, i = n/1000, i+1
	}
	return strconv.FormatFloat(n, 'g', 3, 64) + " " + prefixes[i] + unit
}

// endpointOf is the first endpoint of an offer, and how many more it has.
func endpointOf(v *records.View) string {
	list := v.Metadata.Endpoints
	switch len(list) {
	case 0:
		return "-"
	case 1:
		return list[0]
	}
	return fmt.Sprintf("%s (+%d)", list[0], len(list)-1)
}
