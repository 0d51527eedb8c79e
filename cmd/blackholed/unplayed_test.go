package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// unplayed says who plays the blocks of commands that are no sessions, by document and first command, or why nobody does.
// Package reference checks that all their commands and flags exist.
func unplayed() map[string]string {
	const (
		lab       = "the lab plays it word by word, in network namespaces"
		tutorial  = "the page plays the same commands with two peers on one machine"
		ci        = ".ci/run runs it"
		cluster   = "needs Docker or a cluster; the tests of this package check the files against the program"
		endless   = "has no end; the tests of httpapi and cli follow the same streams"
		long      = "a run of minutes to hours; .ci/run or its own tests play a short one"
		processes = "TestPrograms runs these programs"
		hooks     = "TestHooks of testnet/outside plays it, with the scripts of the page"
	)
	return map[string]string{
		"README.md: go run ./testnet":                                       ci,
		"docs/tutorial.md: blackholed run --profile lan --network office":   tutorial,
		"README.md: blackholed sell gpu":                                    "docs/howto/trade.md and the scenario trade of the lab play them",
		"docs/howto/for-agents.md: git config receive.advertisePushOptions": "TestGuardedPushes of internal/cli/coordination pushes by git itself",
		"docs/howto/trade-hooks.md: #!/bin/sh":                              hooks,
		"docs/howto/trade-hooks.md: # ssh-keygen":                           hooks,
		"docs/howto/trade-hooks.md: # printf":                               hooks,
		"docs/howto/trade-hooks.md: blackholed offer reserve KEY":           hooks,
		"docs/nat.md: blackholed status | grep reach":                       lab,
		"docs/howto/from-etcd.md: BLACKHOLE_ETCD_LISTEN=":                   "TestEtcdctl of etcdapi and internal/tools/etcdclient do the same with etcd's clients",
		"docs/howto/kubernetes.md: k3s server":                              "testnet/outside/kubernetes.py plays Kubernetes' own API server with the same settings",
		"docs/nat.md: blackholed run --profile lan":                         lab,
		"docs/nat.md: blackholed run --profile public":                      lab,
		"docs/api.md: curl -N 'localhost:8500/v1/events":                    endless,
		"examples/provider/README.md: blackholed run":                       processes,
		"examples/consumer/README.md: go run ./examples/consumer":           processes,
		"deploy/compose/README.md: cd deploy/compose":                       cluster,
		"deploy/compose/README.md: docker compose exec":                     cluster,
		"deploy/kubernetes/README.md: kubectl create namespace":             cluster,
		"deploy/kubernetes/README.md: kubectl apply":                        cluster,
		"testnet/README.md: go run ./testnet":                               ci,
		"testnet/README.md: go run ./testnet nemesis -duration":             long,
		"testnet/README.md: go run ./testnet nemesis -scenario merge":       long,
		"testnet/README.md: go run ./testnet oracle":                        long,
		"testnet/README.md: go run ./testnet upgrade":                       long,
		"testnet/README.md: sudo go run ./testnet lab -scenario homes":      ci,
		"testnet/README.md: sudo go run ./testnet night":                    long,
	}
}

// TestEveryBlockIsPlayed: a block of commands in a document is a session, or the list says who plays it.
func TestEveryBlockIsPlayed(t *testing.T) {
	left := unplayed()
	fence := regexp.MustCompile("(?m)^ *```(?:console|sh|bash|shell)\n *(?:\\$ )?([^\n]*)")
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && slices.Contains([]string{".git", "testdata", "node_modules"}, entry.Name()) {
			if err == nil {
				err = filepath.SkipDir
			}
			return err
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		name, err := filepath.Rel(root, path)
		require.NoError(t, err)
		for _, m := range fence.FindAllStringSubmatch(string(data), -1) {
			block, known := filepath.ToSlash(name)+": "+m[1], ""
			for entry := range unplayed() {
				if strings.HasPrefix(block, entry) && len(entry) > len(known) {
					known = entry
				}
			}
			require.NotEmpty(t, known, "no test plays this block: begin it with ```console session, or say in unplayed why not: %s", block)
			delete(left, known)
		}
		return nil
	}))
	require.Empty(t, left, "no document has these blocks")
}
