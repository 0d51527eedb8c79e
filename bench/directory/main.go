// Command directory measures the directory of a group: blackholed processes on loopback with real
// fsync. The first three are the group, the others its clients. Services register at one peer and
// appear at another.
//
//	go run ./bench/directory -only cold,wake,reads -runs 3
//
// It prints rows for Markdown tables, each with the load of the machine and the processor time of
// all peers. Peers and clients share the machine. On a busy machine the processor time says more
// than the clock.
//
// Part peers plays a thousand peers in this process, against a group of three real ones.
package main

import (
	"cmp"
	"context"
	"io"
	"os"
	"time"

	"github.com/blackhole/blackhole/bench/program"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == memberCommand {
		program.Main("directory", member)
		return
	}
	program.Main("directory", execute)
}

// execute measures part by part, each with new peers.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s := &session{}
	if err := s.parse(args, stderr); err != nil {
		return err
	}
	return program.Play(ctx, s, parts(), stdout, stderr)
}

func (s *session) parse(args []string, stderr io.Writer) error {
	f := s.Flags("directory", program.Names(parts()), 2*time.Second, stderr)
	f.IntVar(&s.peers, "peers", 10, "of which the first three are the group")
	f.IntVar(&s.instances, "instances", 10_000, "of all peers together, in cold and batched")
	f.IntVar(&s.changes, "changes", 300, "of which watchers are told, in wake")
	f.IntVar(&s.kills, "kills", 3, "of the leader, in kill")
	f.IntVar(&s.crowd, "crowd", 1000, "peers that are played, in peers")
	f.IntVar(&s.crowded, "crowded", 17_200, "instances of those together")
	f.BoolVar(&s.spread, "spread", false, "have them watch at all members; as it is, all do at the leader")
	f.StringVar(&s.profile, "profile", "", "`file` to write a profile of the processor time of this process to, in peers")
	if err := s.Parse(f, args); err != nil {
		return err
	}
	return cmp.Or(
		program.Within("peers", s.peers, members+2, 50),
		program.Within("instances", s.instances, s.peers, 100_000),
		program.Within("changes", s.changes, 1, 100_000),
		program.Within("kills", s.kills, 1, 1000),
		program.Within("crowd", s.crowd, 1, 10_000),
		program.Within("crowded", s.crowded, s.crowd, 1_000_000),
	)
}
