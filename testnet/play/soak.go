package main

import (
	"context"
	"path/filepath"
	"time"

	"github.com/blackhole/blackhole/testnet/process"
	"github.com/blackhole/blackhole/testnet/soak"
)

// playSoak keeps peers under steady load without faults. It holds only if what each peer has stayed flat.
func playSoak(ctx context.Context, cl call) (flat bool, err error) {
	c := soak.Config{Progress: cl.stdout}
	f := cl.flags("Keeps peers under steady load without faults, and checks that what each holds stays flat.")
	f.DurationVar(&c.Duration, "duration", time.Hour, "of the load")
	f.DurationVar(&c.Every, "every", time.Minute, "from one look at the peers to the next")
	f.IntVar(&c.Peers, "peers", 5, "peers, 2 to 9; three of them vote")
	f.StringVar(&c.Binary, "binary", "", "`file` of a built blackholed to run instead of building one")
	if err := cl.parse(f, func() error { return c.Validate() }); err != nil {
		return false, err
	}
	var remove func(bool)
	if c.Dir, remove, err = scratch("soak"); err != nil {
		return false, err
	}
	defer func() { remove(flat || err != nil) }() // it stays if something grew
	if c.Binary == "" {
		c.Binary, err = process.Build(ctx, c.Dir)
	} else {
		c.Binary, err = filepath.Abs(c.Binary)
	}
	if err != nil {
		return false, err
	}
	return soak.Run(ctx, c)
}
