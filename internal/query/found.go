package query

import (
	"strings"

	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// MaxExcluded bounds Answer.Excluded.
const MaxExcluded = 20

// Found is the merged and verified answer of the keepers of a plan's cells.
type Found struct {
	Records  []*records.Record // matches, the freshest version of each name, in any order
	Total    int               // matches at the keepers, with those beyond their limits
	AtLeast  bool              // Total is a lower bound
	Complete bool              // every group of keepers answered, and no match outside Records ranks among the first Limit
	Reason   string            // cause of an incomplete answer
	Beyond   *query.LeftOut    // records left out because they need a later version of the program; nil for none
	Local    bool              // this peer is the only keeper of every cell
	Menu     query.Menu        // of all matches, for a count
	Notes    []string          // cells asked, keepers asked; for Query.Explain
}

// Menu describes one match, to be joined with others.
func (p *Plan) Menu(r *records.Record) query.Menu {
	x := r.Facts()
	m := query.Menu{Most: query.Capacities{CPUCores: x.CPUCores, GPUs: x.GPUs, MemoryMB: x.MemoryMB, StorageBytes: x.StorageBytes, BandwidthMbps: x.Bandwidth}}
	if x.Country != "" {
		m.Countries = map[string]int{strings.ToUpper(x.Country): 1}
	}
	return m
}

// MenuProto converts a menu to its wire form.
func MenuProto(m query.Menu) *pb.Menu {
	return &pb.Menu{
		Types: converted[uint32](m.Types), Countries: converted[uint32](m.Countries),
		CpuCores: m.Most.CPUCores, Gpus: m.Most.GPUs, MemoryMb: m.Most.MemoryMB, StorageBytes: m.Most.StorageBytes, BandwidthMbps: m.Most.BandwidthMbps,
	}
}

// MenuFromProto converts a menu as it is; nil is the zero value.
func MenuFromProto(m *pb.Menu) query.Menu {
	return query.Menu{
		Types: converted[int](m.GetTypes()), Countries: converted[int](m.GetCountries()),
		Most: query.Capacities{
			CPUCores: m.GetCpuCores(), GPUs: m.GetGpus(), MemoryMB: m.GetMemoryMb(), StorageBytes: m.GetStorageBytes(), BandwidthMbps: m.GetBandwidthMbps(),
		},
	}
}

func converted[To, From int | uint32](counts map[string]From) map[string]To {
	if len(counts) == 0 {
		return nil
	}
	list := make(map[string]To, len(counts))
	for k, n := range counts {
		list[k] = To(n)
	}
	return list
}
