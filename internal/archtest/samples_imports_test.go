package archtest

import "slices"

func importSamples() []sample {
	return slices.Concat(floorSamples(), librarySamples(), closureSamples())
}

func floorSamples() []sample {
	return []sample{
		{
			rule: "floor", name: "down",
			files: files{
				"pkg/records/a.go":       importing("records", "m/pkg/geo"),
				"internal/daemon/a.go":   importing("daemon", "m/pkg/keeper"),
				"cmd/blackholed/a.go":    importing("main", "m/internal/daemon"),
				"pkg/geo/a.go":           importing("geo", "m/pkg/fault"),
				"pkg/keeper/wire/a.go":   importing("wire", "m/pkg/keeper"),
				"examples/provider/a.go": importing("main", "m/pkg/client"),
				"internal/cli/a.go":      importing("cli", "m/proto/blackhole/api/v1"),
			},
		},
		{
			rule: "floor", name: "up",
			files: files{"pkg/geo/a.go": importing("geo", "m/pkg/records")},
			want:  []string{"pkg/geo/a.go:2"},
		},
		{
			rule: "floor", name: "siblings",
			files: files{
				"internal/p2p/a.go": importing("p2p", "m/pkg/gossip"),
				"pkg/keeper/a.go":   importing("keeper", "m/pkg/gossip"),
			},
			want: []string{"internal/p2p/a.go:2", "pkg/keeper/a.go:2"},
		},
		{
			rule: "floor", name: "siblings in tests",
			files: files{"pkg/keeper/a_test.go": importing("keeper", "m/pkg/gossip")},
		},
		{
			rule: "floor", name: "up in tests",
			files: files{"pkg/keeper/a_test.go": importing("keeper_test", "m/pkg/discovery")},
			want:  []string{"pkg/keeper/a_test.go:2"},
		},
		{
			rule: "floor", name: "internal",
			files: files{
				"pkg/index/a.go":      importing("index", "m/internal/metrics"),
				"pkg/index/a_test.go": importing("index", "m/internal/metrics"),
			},
			want: []string{"pkg/index/a.go:2", "pkg/index/a_test.go:2"},
		},
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
				"internal/httpapi/a.go": importing("httpapi", "m/pkg/index"),
				"internal/cli/a.go":     importing("cli", "m/pkg/discovery"),
				"pkg/discovery/a.go":    importing("discovery", "m/pkg/keeper"),
			},
			want: []string{"internal/cli/a.go:2", "internal/httpapi/a.go:2", "pkg/discovery/a.go:2"},
		},
		{
			rule: "floor", name: "users",
			files: files{"internal/p2p/a.go": importing("p2p", "m/internal/config")},
			want:  []string{"internal/p2p/a.go:2"},
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
				"internal/p2p/a.go":   importing("p2p", "github.com/libp2p/go-libp2p"),
				"pkg/gossip/a.go":     importing("gossip", "github.com/libp2p/go-libp2p-pubsub"),
				"pkg/records/a.go":    importing("records", "github.com/libp2p/go-libp2p/core/crypto"),
				"pkg/records/b.go":    importing("records", "github.com/libp2p/go-libp2p/core/record/pb"),
				"internal/group/a.go": importing("group", "go.etcd.io/raft/v3"),
			},
		},
		{
			rule: "fence", name: "outside",
			files: files{
				"pkg/discovery/a.go":      importing("discovery", "github.com/libp2p/go-libp2p/core/host"),
				"pkg/discovery/a_test.go": importing("discovery", "github.com/libp2p/go-libp2p-kad-dht"),
				"pkg/coord/a.go":          importing("coord", "go.etcd.io/raft/v3/raftpb"),
			},
			want: []string{"pkg/coord/a.go:2", "pkg/discovery/a.go:2", "pkg/discovery/a_test.go:2"},
		},
	}
}

func closureSamples() []sample {
	return []sample{
		{
			rule: "plane", name: "apart",
			files: files{
				"pkg/records/a.go":  importing("records", "m/pkg/geo"),
				"pkg/coord/a.go":    importing("coord", "m/pkg/fault"),
				"pkg/registry/a.go": importing("registry", "m/pkg/records"),
				"pkg/registry/b.go": importing("registry", "m/pkg/coord"),
			},
		},
		{
			rule: "plane", name: "through a third",
			files: files{
				"pkg/registry/a.go":  importing("registry", "m/pkg/coord"),
				"pkg/discovery/a.go": importing("discovery", "m/pkg/registry"),
			},
			want: []string{"pkg/discovery/a.go:1"},
		},
		{
			rule: "plane", name: "the other way",
			files: files{"internal/group/a.go": importing("group", "m/pkg/records")},
			want:  []string{"internal/group/a.go:1"},
		},
		{
			rule: "sdk", name: "lean",
			files: files{
				"pkg/client/a.go":      importing("client", "m/pkg/records"),
				"pkg/records/a.go":     importing("records", "github.com/libp2p/go-libp2p/core/peer"),
				"pkg/client/a_test.go": importing("client", "m/pkg/keeper"),
				"pkg/keeper/a.go":      importing("keeper", "github.com/libp2p/go-libp2p/core/host"),
			},
		},
		{
			rule: "sdk", name: "whole stack",
			files: files{
				"pkg/client/a.go":    importing("client", "m/pkg/discovery"),
				"pkg/discovery/a.go": importing("discovery", "m/pkg/keeper"),
				"pkg/keeper/a.go":    importing("keeper", "github.com/libp2p/go-libp2p/core/host"),
			},
			want: []string{"pkg/client/a.go:1"},
		},
		{
			rule: "sdk", name: "a database",
			files: files{
				"pkg/client/a.go":    importing("client", "m/pkg/discovery"),
				"pkg/discovery/a.go": importing("discovery", "m/pkg/registry"),
				"pkg/registry/a.go":  importing("registry", "github.com/cockroachdb/pebble/v2"),
			},
			want: []string{"pkg/client/a.go:1"},
		},
		{
			rule: "name", name: "telling",
			files: files{"pkg/geo/a.go": "package geo\n", "pkg/commons/a.go": "package commons\n"},
		},
		{
			rule: "name", name: "vague",
			files: files{
				"pkg/core/geo/a.go": "package geo\n",
				"pkg/geo/a.go":      "package utils\n",
			},
			want: []string{"pkg/core/geo/a.go:1", "pkg/geo/a.go:1"},
		},
	}
}
