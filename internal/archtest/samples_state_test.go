package archtest

import "slices"

func stateSamples() []sample {
	return slices.Concat(variableSamples(), loggerSamples(), injectionSamples())
}

func variableSamples() []sample {
	return []sample{
		{
			rule: "init", name: "method of that name",
			files: files{"pkg/geo/a.go": "package geo\n\nfunc (t *T) init() {}\n"},
		},
		{
			rule: "init", name: "function",
			files: files{
				"pkg/geo/a.go":      "package geo\n\nfunc init() {}\n",
				"pkg/geo/a_test.go": "package geo\n\nfunc init() {}\n",
			},
			want: []string{"pkg/geo/a.go:3", "pkg/geo/a_test.go:3"},
		},
		{
			rule: "variable", name: "permitted",
			files: files{
				"pkg/geo/a.go": `package geo

import (
	_ "embed"
	"errors"
)

var _ error = (*Error)(nil)

var ErrGone = errors.New("gone")

var (
	errA, errB = errors.New("a"), &Error{}
)

//go:embed cities.csv
var cities string

const limit = 5

func f() { var local int; _ = local }
`,
				"pkg/geo/a_test.go": "package geo\n\nimport \"flag\"\n\nvar update = flag.Bool(\"update\", false, \"\")\n",
			},
		},
		{
			rule: "variable", name: "refused",
			files: files{
				"pkg/geo/a.go": `package geo

import "flag"

var cache = map[string]int{}

var (
	a, b int
	errLast error
	ErrTable = map[int]error{}
	Errors = f()
)

var update = flag.Bool("update", false, "")
`,
				"pkg/geo/a_test.go": "package geo\n\nvar shared = f()\n",
			},
			want: []string{
				"pkg/geo/a.go:5", "pkg/geo/a.go:8", "pkg/geo/a.go:8", "pkg/geo/a.go:9",
				"pkg/geo/a.go:10", "pkg/geo/a.go:11", "pkg/geo/a.go:14", "pkg/geo/a_test.go:3",
			},
		},
	}
}

func loggerSamples() []sample {
	return []sample{
		{
			rule: "logger", name: "injected",
			files: files{
				"pkg/keeper/a.go": `package keeper

import "log/slog"

func f(log *slog.Logger) { log.Info("x"); slog.New(slog.DiscardHandler).Info("y") }
`,
				"examples/provider/a.go": "package main\n\nimport \"log\"\n\nfunc main() { log.Fatal(1) }\n",
			},
		},
		{
			rule: "logger", name: "process-wide",
			files: files{"pkg/keeper/a.go": `package keeper

import (
	"log"
	logs "log/slog"
)

func f() {
	log.Print(1)
	logs.Info("x")
	_ = logs.Default()
}
`},
			want: []string{"pkg/keeper/a.go:9", "pkg/keeper/a.go:10", "pkg/keeper/a.go:11"},
		},
	}
}

func injectionSamples() []sample {
	return []sample{
		{
			rule: "clock", name: "injected",
			files: files{
				"pkg/keeper/a.go":        "package keeper\n\nimport \"time\"\n\nvar now func() time.Time = time.Now\n",
				"pkg/keeper/b.go":        "package keeper\n\nfunc f(time clock) { time.Now() }\n",
				"pkg/keeper/a_test.go":   "package keeper\n\nimport \"time\"\n\nfunc f() { time.Now() }\n",
				"internal/daemon/run.go": "package daemon\n\nimport \"time\"\n\nfunc f() { time.Now() }\n",
			},
		},
		{
			rule: "clock", name: "read",
			files: files{"pkg/keeper/a.go": "package keeper\n\nimport \"time\"\n\nfunc f() {\n\ttime.Since(time.Now())\n}\n"},
			want:  []string{"pkg/keeper/a.go:6", "pkg/keeper/a.go:6"},
		},
		{
			rule: "random", name: "injected",
			files: files{"pkg/query/a.go": `package query

import "math/rand/v2"

func f(seed uint64) { rand.New(rand.NewPCG(seed, 0)).IntN(5) }

func g(rand *rand.Rand) { rand.IntN(5) }
`},
		},
		{
			rule: "random", name: "process-wide",
			files: files{"pkg/query/a.go": "package query\n\nimport \"math/rand/v2\"\n\nfunc f() { rand.IntN(5) }\n"},
			want:  []string{"pkg/query/a.go:5"},
		},
		{
			rule: "pure", name: "computes",
			files: files{
				"pkg/geo/a.go":    "package geo\n\nimport (\n\t\"time\"\n\t\"net/netip\"\n)\n\nfunc f(t time.Time) netip.Addr { t.Add(time.Hour) }\n",
				"pkg/keeper/a.go": "package keeper\n\nfunc f() { go f() }\n",
			},
		},
		{
			rule: "pure", name: "acts",
			files: files{"pkg/geo/a.go": `package geo

import (
	"os"
	"time"
)

func f() {
	os.Getenv("X")
	time.NewTimer(5)
	go f()
}
`},
			want: []string{"pkg/geo/a.go:9", "pkg/geo/a.go:10", "pkg/geo/a.go:11"},
		},
	}
}
