package query

import "maps"

// Menu describes matches without listing them, for a page that offers filters: how many there are of each type and in each country, and the most that any of them has of a capacity. The zero
// value describes no matches.
type Menu struct {
	Types     map[string]int `json:"types,omitempty"`     // of a query for several types
	Countries map[string]int `json:"countries,omitempty"` // by ISO 3166-1 alpha-2; matches without a country are in none
	Most      Capacities     `json:"most,omitzero"`
}

// Capacities are numbers of what records offer. Zero means that none was stated.
type Capacities struct {
	CPUCores      uint32 `json:"cpu_cores,omitempty"`
	GPUs          uint32 `json:"gpus,omitempty"`
	MemoryMB      uint64 `json:"memory_mb,omitempty"`
	StorageBytes  uint64 `json:"storage_bytes,omitempty"` // available
	BandwidthMbps uint64 `json:"bandwidth_mbps,omitempty"`
}

// Join adds the matches of another menu.
func (m *Menu) Join(o Menu) {
	m.Types, m.Countries = sum(m.Types, o.Types), sum(m.Countries, o.Countries)
	a, b := &m.Most, o.Most
	a.CPUCores, a.GPUs, a.MemoryMB = max(a.CPUCores, b.CPUCores), max(a.GPUs, b.GPUs), max(a.MemoryMB, b.MemoryMB)
	a.StorageBytes, a.BandwidthMbps = max(a.StorageBytes, b.StorageBytes), max(a.BandwidthMbps, b.BandwidthMbps)
}

// sum returns counts and more, which is not changed; counts may be.
func sum(counts, more map[string]int) map[string]int {
	if counts == nil {
		return maps.Clone(more)
	}
	for k, n := range more {
		counts[k] += n
	}
	return counts
}
