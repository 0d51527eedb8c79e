package archtest

func stateSamples() []sample {
	return []sample{
		{
			rule: "state", name: "permitted",
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

func (t *T) init() { var local int; _ = local }
`,
				"pkg/geo/a_test.go": "package geo\n\nimport \"flag\"\n\nvar update = flag.Bool(\"update\", false, \"\")\n",
			},
		},
		{
			rule: "state", name: "refused",
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
				"pkg/geo/a_test.go": "package geo\n\nvar shared = f()\n\nfunc init() {}\n",
			},
			want: []string{
				"pkg/geo/a.go:5", "pkg/geo/a.go:8", "pkg/geo/a.go:8", "pkg/geo/a.go:9",
				"pkg/geo/a.go:10", "pkg/geo/a.go:11", "pkg/geo/a.go:14", "pkg/geo/a_test.go:3", "pkg/geo/a_test.go:5",
			},
		},
		{
			rule: "text", name: "permitted",
			files: files{
				"pkg/records/a.go": `package records

import "strings"

func f(s string, list []string, b []byte) []string {
	_, _ = s[:strings.Index(s, ".")], string(b[:8])
	return list[:min(len(list), 3)]
}
`,
				"internal/platform/clean/a.go": "package clean\n\nimport \"strings\"\n\nfunc f(s string) string { return strings.ToValidUTF8(s[:3], \"\") }\n",
			},
		},
		{
			rule: "text", name: "refused",
			files: files{
				"internal/platform/probe/a.go": `package probe

import "strings"

type outcome struct{ detail string }

const most = 200

func f(o outcome, err error, b []byte) {
	_ = o.detail[:min(len(o.detail), most)]
	_ = err.Error()[:most]
	_ = string(b[:min(len(b), most)])
	_ = strings.ToValidUTF8(o.detail, "")
}
`,
			},
			want: []string{"internal/platform/probe/a.go:10", "internal/platform/probe/a.go:11", "internal/platform/probe/a.go:12", "internal/platform/probe/a.go:13"},
		},
		{
			rule: "injected", name: "permitted",
			files: files{
				"pkg/client/a.go":        "package client\n\nimport \"time\"\n\nvar now func() time.Time = time.Now\n",
				"pkg/client/b.go":        "package client\n\nfunc f(time clock) { time.Now(); time.Sleep(1); go f() }\n",
				"pkg/client/a_test.go":   "package client\n\nimport \"time\"\n\nfunc f() { time.Now(); time.Sleep(1) }\n",
				"pkg/client/c.go":        "package client\n\nimport \"log/slog\"\n\nfunc g(log *slog.Logger) { log.Info(\"x\"); slog.New(slog.DiscardHandler).Info(\"y\") }\n",
				"pkg/query/a.go":         "package query\n\nimport \"math/rand/v2\"\n\nfunc f(seed uint64) { rand.New(rand.NewPCG(seed, 0)).IntN(5) }\n\nfunc g(rand *rand.Rand) { rand.IntN(5) }\n",
				"pkg/geo/a.go":           "package geo\n\nimport (\n\t\"time\"\n\t\"net/netip\"\n)\n\nfunc f(t time.Time) netip.Addr { t.Add(time.Hour) }\n",
				"internal/daemon/run.go": "package daemon\n\nimport \"time\"\n\nfunc f() { time.Now() }\n",
				"testnet/run.go":         "package main\n\nimport (\n\t\"log\"\n\t\"time\"\n)\n\nfunc f() { time.Sleep(1); log.Fatal(1) }\n",
			},
		},
		{
			rule: "injected", name: "clock, randomness, sleep, logger",
			files: files{
				"pkg/client/a.go":      "package client\n\nimport \"time\"\n\nfunc f() {\n\ttime.Since(time.Now())\n}\n",
				"pkg/client/b.go":      "package client\n\nimport \"math/rand/v2\"\n\nfunc f() { rand.IntN(5) }\n",
				"pkg/client/c.go":      "package client\n\nimport clock \"time\"\n\nfunc h() { clock.Sleep(1) }\n",
				"internal/daemon/d.go": "package daemon\n\nimport (\n\t\"log\"\n\tlogs \"log/slog\"\n)\n\nfunc f() {\n\tlog.Print(1)\n\tlogs.Info(\"x\")\n\t_ = logs.Default()\n}\n",
			},
			want: []string{"internal/daemon/d.go:9", "internal/daemon/d.go:10", "internal/daemon/d.go:11",
				"pkg/client/a.go:6", "pkg/client/a.go:6", "pkg/client/b.go:5", "pkg/client/c.go:5"},
		},
		{
			rule: "injected", name: "a pure room acts",
			files: files{"pkg/geo/a.go": "package geo\n\nimport (\n\t\"os\"\n\t\"time\"\n)\n\nfunc f() {\n\tos.Getenv(\"X\")\n\ttime.NewTimer(5)\n\tgo f()\n}\n"},
			want:  []string{"pkg/geo/a.go:9", "pkg/geo/a.go:10", "pkg/geo/a.go:11"},
		},
		{
			rule: "sleep", name: "bubbles",
			files: files{"pkg/client/a_test.go": `package client

import (
	"testing/synctest"
	"time"
)

func TestLiteral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { time.Sleep(1) })
	t.Run("x", func(t *testing.T) { bubble(t, func() { time.Sleep(1) }) })
}

func TestNamed(t *testing.T) { synctest.Test(t, inside) }

func inside(t *testing.T) { time.Sleep(1) }
`},
		},
		{
			rule: "sleep", name: "outside",
			files: files{"pkg/client/a_test.go": `package client

import "time"

func TestPlain(t *testing.T) {
	time.Sleep(1)
	t.Run("x", func(t *testing.T) { time.Sleep(1) })
}
`},
			want: []string{"pkg/client/a_test.go:6", "pkg/client/a_test.go:7"},
		},
		{
			rule: "dial", name: "permitted",
			files: files{
				"internal/platform/probe/line.go":   "package probe\n\nimport \"net\"\n\nfunc f() { net.Dial(\"tcp\", \"\"); net.LookupHost(\"\"); _ = net.Dialer{} }\n",
				"internal/platform/probe/a.go":      "package probe\n\nimport (\n\t\"net\"\n\t\"net/http\"\n)\n\nfunc f(r *net.Resolver) { _ = http.Transport{DialContext: nil}; _ = &http.Client{Transport: nil} }\n",
				"internal/platform/probe/a_test.go": "package probe\n\nimport \"net\"\n\nfunc g() { net.Dial(\"tcp\", \"\") }\n",
				"internal/platform/access/a.go":     "package access\n\nimport \"net\"\n\nfunc g() { net.Dial(\"tcp\", \"\") }\n",
			},
		},
		{
			rule: "dial", name: "refused",
			files: files{
				"internal/platform/probe/a.go": `package probe

import (
	"net"
	"net/http"
)

func f() {
	net.Dial("tcp", "")
	net.ListenUDP("udp", nil)
	_ = (&net.Dialer{}).DialContext
	net.DefaultResolver.LookupHost(nil, "")
	http.Get("")
	_ = http.DefaultTransport
	_ = &http.Client{}
	_ = &http.Transport{Proxy: nil}
	_ = &net.Resolver{PreferGo: true}
	_ = new(http.Client)
	var r net.Resolver
}
`,
				"internal/cli/offer/a.go":            "package offer\n\nimport \"net/http\"\n\nfunc f() { http.DefaultClient.Do(nil) }\n",
				"internal/discovery/keep/deep/a.go":  "package deep\n\nimport \"net\"\n\nfunc f() { net.LookupTXT(\"\") }\n",
				"internal/agent/health/probe_tls.go": "package health\n\nimport \"crypto/tls\"\n\nfunc f() { tls.Dial(\"\", \"\", nil) }\n",
			},
			want: []string{
				"internal/agent/health/probe_tls.go:5", "internal/cli/offer/a.go:5", "internal/discovery/keep/deep/a.go:5",
				"internal/platform/probe/a.go:9", "internal/platform/probe/a.go:10", "internal/platform/probe/a.go:11", "internal/platform/probe/a.go:12",
				"internal/platform/probe/a.go:13", "internal/platform/probe/a.go:14", "internal/platform/probe/a.go:15", "internal/platform/probe/a.go:16", "internal/platform/probe/a.go:17",
				"internal/platform/probe/a.go:18", "internal/platform/probe/a.go:19",
			},
		},
	}
}
