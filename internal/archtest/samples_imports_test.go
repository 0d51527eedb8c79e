package archtest

import "slices"

func importSamples() []sample {
	return slices.Concat(floorSamples(), floorTableSamples(), librarySamples(), closureSamples())
}

func floorSamples() []sample {
	return []sample{
		{
			rule: "floor", name: "down",
			files: files{
				"pkg/records/a.go":                    importing("records", "m/pkg/geo"),
				"internal/daemon/a.go":                importing("daemon", "m/internal/discovery/keeper"),
				"cmd/blackholed/a.go":                 importing("main", "m/internal/daemon"),
				"pkg/geo/a.go":                        importing("geo", "m/pkg/fault"),
				"pkg/geo/b.go":                        importing("geo", "m/internal/platform/clean"),
				"internal/discovery/keeper/wire/a.go": importing("wire", "m/internal/discovery/keeper"),
				"examples/provider/a.go":              importing("main", "m/pkg/client"),
				"internal/cli/a.go":                   importing("cli", "m/proto/blackhole/api/v1"),
			},
		},
		{
			rule: "floor", name: "up",
			files: files{
				"pkg/geo/a.go":   importing("geo", "m/pkg/records"),
				"pkg/fault/a.go": importing("fault", "m/internal/platform/clean"),
			},
			want: []string{"pkg/fault/a.go:2", "pkg/geo/a.go:2"},
		},
		{
			rule: "floor", name: "siblings",
			files: files{
				"internal/platform/p2p/a.go":     importing("p2p", "m/pkg/gossip"),
				"internal/discovery/keeper/a.go": importing("keeper", "m/pkg/gossip"),
			},
			want: []string{"internal/discovery/keeper/a.go:2", "internal/platform/p2p/a.go:2"},
		},
		{
			rule: "floor", name: "siblings in tests",
			files: files{"internal/discovery/keeper/a_test.go": importing("keeper", "m/pkg/gossip")},
		},
		{
			rule: "floor", name: "up in tests",
			files: files{"internal/discovery/keeper/a_test.go": importing("keeper_test", "m/internal/discovery")},
			want:  []string{"internal/discovery/keeper/a_test.go:2"},
		},
		{
			rule: "floor", name: "engine",
			files: files{
				"pkg/client/a.go":      importing("client", "m/internal/discovery/index"),
				"pkg/client/a_test.go": importing("client", "m/internal/discovery/index"),
				"pkg/records/a.go":     importing("records", "m/internal/platform/metrics"),
				"pkg/records/b.go":     importing("records", "m/internal/platform/strictjson"),
			},
			want: []string{"pkg/client/a.go:2", "pkg/records/a.go:2"},
		},
		{
			rule: "floor", name: "test support",
			files: files{
				"pkg/client/a_test.go":                 importing("client", "m/internal/coordination/coordtest"),
				"internal/coordination/audit/a.go":     importing("audit", "m/internal/coordination/machine"),
				"internal/coordination/replica/a.go":   importing("replica", "m/internal/coordination/audit"),
				"internal/coordination/coordtest/a.go": importing("coordtest", "m/internal/coordination/audit"),
			},
			want: []string{"internal/coordination/replica/a.go:2"},
		},
	}
}

func floorTableSamples() []sample {
	return []sample{
		{
			rule: "floor", name: "no floor",
			files: files{
				"pkg/new/a.go":     "package new\n",
				"pkg/client/a.go":  importing("client", "m/pkg/new"),
				"pkg/keepers/a.go": "package keepers\n",
			},
			want: []string{"pkg/client/a.go:2", "pkg/keepers/a.go:1", "pkg/new/a.go:1"},
		},
		{
			rule: "floor", name: "only",
			files: files{
				"internal/frontend/httpapi/a.go": importing("httpapi", "m/internal/discovery/index"),
				"internal/cli/a.go":              importing("cli", "m/internal/discovery"),
				"pkg/discovery/a.go":             importing("discovery", "m/internal/discovery/keeper"),
			},
			want: []string{"internal/cli/a.go:2", "internal/frontend/httpapi/a.go:2", "pkg/discovery/a.go:2"},
		},
		{
			rule: "floor", name: "users",
			files: files{"internal/platform/p2p/a.go": importing("p2p", "m/internal/platform/config")},
			want:  []string{"internal/platform/p2p/a.go:2"},
		},
		{
			rule: "floor", name: "build constraint hides nothing",
			files: files{"pkg/geo/a_plan9.go": importing("geo", "m/pkg/records")},
			want:  []string{"pkg/geo/a_plan9.go:2"},
		},
	}
}

func librarySamples() []sample {
	return []sample{
		{
			rule: "fence", name: "inside",
			files: files{
				"internal/platform/p2p/a.go": importing("p2p", "github.com/libp2p/go-libp2p"),
				"pkg/gossip/a.go":            importing("gossip", "github.com/libp2p/go-libp2p-pubsub"),
				"pkg/records/a.go":           importing("records", "github.com/libp2p/go-libp2p/core/crypto"),
				"pkg/records/b.go":           importing("records", "github.com/libp2p/go-libp2p/core/record/pb"),
				"internal/coordination/a.go": importing("group", "go.etcd.io/raft/v3"),
			},
		},
		{
			rule: "fence", name: "outside",
			files: files{
				"pkg/records/a.go":             importing("records", "github.com/libp2p/go-libp2p/core/host"),
				"pkg/records/a_test.go":        importing("records", "github.com/libp2p/go-libp2p-kad-dht"),
				"internal/contract/coord/a.go": importing("coord", "go.etcd.io/raft/v3/raftpb"),
			},
			want: []string{"internal/contract/coord/a.go:2", "pkg/records/a.go:2", "pkg/records/a_test.go:2"},
		},
	}
}

func closureSamples() []sample {
	return []sample{
		{
			rule: "plane", name: "apart",
			files: files{
				"pkg/records/a.go":             importing("records", "m/pkg/geo"),
				"internal/contract/coord/a.go": importing("coord", "m/pkg/fault"),
				"internal/agent/a.go":          importing("agent", "m/pkg/records"),
				"internal/agent/b.go":          importing("agent", "m/internal/contract/coord"),
			},
		},
		{
			rule: "plane", name: "through a third",
			files: files{
				"internal/agent/a.go": importing("agent", "m/internal/contract/coord"),
				"pkg/discovery/a.go":  importing("discovery", "m/internal/agent"),
			},
			want: []string{"pkg/discovery/a.go:1", "pkg/discovery/a.go:1"},
		},
		{
			rule: "plane", name: "the other way",
			files: files{"internal/coordination/a.go": importing("group", "m/pkg/records")},
			want:  []string{"internal/coordination/a.go:1"},
		},
		{
			rule: "sdk", name: "lean",
			files: files{
				"pkg/client/a.go":                importing("client", "m/pkg/records"),
				"pkg/records/a.go":               importing("records", "github.com/libp2p/go-libp2p/core/peer"),
				"pkg/client/a_test.go":           importing("client", "m/internal/discovery/keeper"),
				"internal/discovery/keeper/a.go": importing("keeper", "github.com/libp2p/go-libp2p/core/host"),
			},
		},
		{
			rule: "sdk", name: "a network",
			files: files{
				"pkg/client/a.go":  importing("client", "m/pkg/records"),
				"pkg/records/a.go": importing("records", "github.com/libp2p/go-libp2p/core/host"),
			},
			want: []string{"pkg/client/a.go:1"},
		},
		{
			rule: "sdk", name: "an engine",
			files: files{
				"pkg/client/a.go":               importing("client", "m/pkg/records"),
				"pkg/records/a.go":              importing("records", "m/internal/discovery/index"),
				"internal/discovery/index/a.go": "package index\n",
			},
			want: []string{"pkg/client/a.go:1"},
		},
		{
			rule: "sdk", name: "a database",
			files: files{
				"pkg/client/a.go":  importing("client", "m/pkg/records"),
				"pkg/records/a.go": importing("records", "github.com/cockroachdb/pebble/v2"),
			},
			want: []string{"pkg/client/a.go:1"},
		},
	}
}
