package nemesis

import (
	"context"
	"github.com/blackhole/blackhole/testnet/await"
	"time"
)

// settling is the pause between two changes of a program, under load.
const settling = 3 * time.Second

// roll changes the program of every peer one by one to Config.Upgrade, in a drawn order, and then back to
// Config.Binary in another one. After each change all peers must serve their clients again.
func (f *faults) roll(ctx context.Context) error {
	for _, program := range []struct{ verb, binary string }{{"upgraded", f.Upgrade}, {"set back", f.Binary}} {
		for _, i := range f.rng.Perm(len(f.peers)) {
			if err := f.change(ctx, i, program.binary); err != nil {
				return err
			}
			f.say("%s was %s", f.peers[i].name, program.verb)
			f.report.Faults[program.verb]++
			if err := await.Pause(ctx, settling); err != nil {
				return err
			}
		}
	}
	return nil
}

// change restarts a peer with another program.
func (f *faults) change(ctx context.Context, i int, binary string) error {
	f.noteDistrust(ctx, i)
	f.peers[i].binary = binary
	f.net.Peers[i].Interrupt()
	return f.heal(ctx)
}
