package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/nemesis"
	"github.com/blackhole/blackhole/testnet/process"
)

// breaks is the list of incompatible changes of wire and disk. A change of the file marks the commit from which
// on all programs work together: the oldest version that an upgrade may begin with.
const breaks = "testnet/breaks.txt"

// upgrade changes a group of three and a network of five from the previous version to this one under load, peer
// by peer, and back. It holds only if every promise held, or without the commit of the previous
// version, as in a shallow clone.
func upgrade(ctx context.Context, cl call) (held bool, err error) {
	const op = "testnet.upgrade"
	c, stdout := nemesis.Config{Founders: 3, Others: 2, Progress: cl.stdout}, cl.stdout
	f := cl.flags("Changes a network under load from the previous version to this one, peer by peer, and back.")
	f.Uint64Var(&c.Seed, "seed", 1, "of the order of the peers, and of the load")
	f.DurationVar(&c.Recovery, "recovery", 30*time.Second, "longest time from a change of one peer until all clients are served")
	source := f.String("from", "", "`commit` of the previous version (default the last release, or the last incompatible change if that is later)")
	if err := cl.parse(f, func() error { return nil }); err != nil {
		return false, err
	}
	from := *source
	var remove func(bool)
	if c.Dir, remove, err = scratch("upgrade"); err != nil {
		return false, err
	}
	defer func() { remove(held) }()
	tree := filepath.Join(c.Dir, "source")
	if from == "" {
		if from, err = previous(ctx, "."); err != nil {
			fmt.Fprintf(stdout, "skipped: %v\n", err)
			return true, nil
		}
	}
	if reason := checkOut(ctx, from, tree); reason != nil {
		fmt.Fprintf(stdout, "skipped: the previous version %s is not in this clone: %v\n", from, reason)
		return true, nil
	}
	fmt.Fprintf(stdout, "building blackholed of %s and of today ...\n", from)
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", filepath.Join(c.Dir, "previous"), "./cmd/blackholed")
	build.Dir = tree
	if out, err := build.CombinedOutput(); err != nil {
		return false, fault.New(op, fault.Unavailable, "the previous version does not build: %w\n%s", err, out)
	}
	c.Binary = filepath.Join(c.Dir, "previous")
	if c.Upgrade, err = process.Build(ctx, c.Dir); err != nil {
		return false, err
	}
	report, err := nemesis.Run(ctx, c)
	if err != nil {
		return false, fault.New(op, fault.KindOf(err), "%w; data and logs are in %s", err, c.Dir)
	}
	return len(report.Violations) == 0, report.Show(stdout)
}

// previous chooses the version before in the history of the repository around dir: the commit of the last
// incompatible change, or the last release if that is later. No commit is written down, since a rewritten history
// would lose it. The error says why this clone has none.
func previous(ctx context.Context, dir string) (string, error) {
	git := func(args ...string) string {
		c := exec.CommandContext(ctx, "git", args...)
		c.Dir = dir
		out, _ := c.Output() // an error leaves an empty answer
		return strings.TrimSpace(string(out))
	}
	root := git("rev-parse", "--show-toplevel")
	switch {
	case root == "":
		return "", errors.New("there is no git repository here")
	case git("rev-parse", "--is-shallow-repository") == "true":
		return "", errors.New("this clone has no history: run git fetch --unshallow, or name a commit with -from")
	}
	change := git("log", "-1", "--format=%H", "--", filepath.Join(root, breaks))
	if change == "" {
		return "", errors.New("no commit of this history has the file " + breaks)
	}
	release := git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^")
	if release != "" && git("merge-base", change, release) == change {
		return release, nil
	}
	return change, nil
}

// checkOut writes the tree of a commit of this repository into dir.
func checkOut(ctx context.Context, commit, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	root, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return errors.New("there is no git repository here")
	}
	archive := filepath.Join(dir, "source.tar")
	git := exec.CommandContext(ctx, "git", "archive", "--output", archive, commit)
	git.Dir = strings.TrimSpace(string(root))
	if out, err := git.CombinedOutput(); err != nil {
		return errors.New(strings.TrimSpace(string(out)))
	}
	out, err := exec.CommandContext(ctx, "tar", "-xf", archive, "-C", dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("tar: %w: %s", err, out)
	}
	return os.Remove(archive)
}
