package cli

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// farewell bounds how long it is tried to give a lock back, which ends with its lease anyway.
const farewell = 5 * time.Second

// claim is what the flags of lock ask for.
type claim struct {
	name    string
	command []string
	ttl     time.Duration
	wait    time.Duration
	try     bool
	shared  bool
	permits uint32
	timeout time.Duration // to reach the group
}

func (a App) lockCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "lock NAME [-- COMMAND ARG...]", Short: "Hold a lock, alone or while a command runs",
		Long: "Take a lock and run a command while it is held; without one, hold it until interrupted.\n\n" +
			"The command runs in a process group of its own, with these variables:\n" +
			"  BLACKHOLE_LOCK_NAME, BLACKHOLE_LOCK_LEASE\n" +
			"  BLACKHOLE_LOCK_TOKEN     fencing token: have what the command writes to check it\n" +
			"  BLACKHOLE_LOCK_DEADLINE  Unix time up to which the lock is held for certain, at the start;\n" +
			"                           this program goes on to renew it\n" +
			"When the lock is about to be lost the group gets SIGTERM, and SIGKILL before anybody else can have\n" +
			"the lock. An interrupt is passed on as SIGTERM. The exit code is that of the command, 128 and\n" +
			"the signal when one ended it, 127 when there is no such command.",
		Example: "  " + name + " lock --wait 30s db/migrate -- ./migrate up\n" +
			"  " + name + " lock -n 3 pool/gpu -- ./train",
		Args: lockArgs,
	}
	var c claim
	f := cmd.Flags()
	f.DurationVar(&c.ttl, "ttl", client.DefaultTTL, "how long others wait for this program when it dies")
	f.DurationVar(&c.wait, "wait", 0, "longest time to wait for others to give the lock back; 0 is without bound")
	f.BoolVar(&c.try, "try", false, "do not wait")
	f.BoolVar(&c.shared, "shared", false, "hold it beside others who ask for --shared")
	f.Uint32VarP(&c.permits, "permits", "n", 0, "hold it beside others, so many in all; all must name the same number")
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.name, c.command, c.timeout = args[0], args[1:], r.timeout
		if err := c.check(cmd); err != nil {
			return err
		}
		r.timeout = min(r.timeout, 0) // it is for reaching the group, not for holding the lock
		return r.coordinate(cmd, func(ctx context.Context, cl *client.Client) error { return r.lock(ctx, cl, c) })
	}
	return cmd
}

// lockArgs wants a name, and a command behind "--" only: its flags are none of ours.
func lockArgs(cmd *cobra.Command, args []string) error {
	names := len(args)
	if dash := cmd.ArgsLenAtDash(); dash >= 0 {
		names = dash
	}
	switch {
	case names == 1:
		return nil
	case names > 1:
		return fault.Invalidf("NAME", nil, "must be given once; a command stands behind --")
	default:
		return fault.Invalidf("NAME", nil, "must be given once, not 0 times")
	}
}

func (c *claim) check(cmd *cobra.Command) error {
	switch {
	case c.try && cmd.Flags().Changed("wait"):
		return fault.Invalidf("--try", nil, "does not go with --wait")
	case c.shared && cmd.Flags().Changed("permits"):
		return fault.Invalidf("--shared", nil, "does not go with --permits")
	case c.ttl < time.Millisecond:
		return fault.Invalidf("--ttl", c.ttl, "must be at least 1ms")
	case c.wait < 0:
		return fault.Invalidf("--wait", c.wait, "must be at least 0")
	case cmd.Flags().Changed("permits") && c.permits == 0:
		return fault.Invalidf("--permits", c.permits, "must be above 0")
	}
	if len(c.command) > 0 {
		if _, err := exec.LookPath(c.command[0]); err != nil {
			return coded{127, fault.New("", fault.NotFound, "%w", err)}
		}
	}
	return nil
}

func (c *claim) options() []client.LockOption {
	opts := []client.LockOption{client.Wait(c.wait)}
	if c.shared {
		opts = append(opts, client.Shared())
	}
	if c.permits > 0 {
		opts = append(opts, client.Permits(c.permits))
	}
	return opts
}

// lock takes the lock, and gives it back in the end.
func (r *remote) lock(ctx context.Context, c *client.Client, want claim) error {
	s, err := r.session(ctx, c, want)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(farewell, s.Remaining()))
		defer cancel()
		if err := s.Close(ctx); err != nil {
			r.app.say("warning: the lock could not be given back; it ends within %s: %s", s.TTL(), message(err))
		}
	}()
	take := s.Lock
	if want.try {
		take = s.TryLock
	}
	held, err := take(ctx, want.name, want.options()...)
	switch {
	case errors.Is(err, client.ErrNotAcquired):
		return coded{exitNotAcquired, fault.New("", fault.Conflict, "%s: others hold the lock", want.name)}
	case err != nil:
		return renameField(err, lockFlag)
	case len(want.command) > 0:
		return r.app.supervise(ctx, held, want)
	}
	return r.hold(ctx, held)
}

// session reaches the group.
func (r *remote) session(ctx context.Context, c *client.Client, want claim) (*client.Session, error) {
	if want.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, want.timeout)
		defer cancel()
	}
	return c.Session(ctx, client.TTL(want.ttl))
}

// lockFlag names the argument or flag that set a field.
func lockFlag(field string) string {
	switch field {
	case "name":
		return "NAME"
	case "permits", "mode":
		return "--permits"
	}
	return field
}

// heldView is a held lock as it is shown.
type heldView struct {
	Name  string `json:"name"`
	Key   string `json:"key"`
	Token int64  `json:"fencing_token"`
	Lease string `json:"lease_id"`
}

// hold shows a lock and holds it until interrupted.
func (r *remote) hold(ctx context.Context, held *client.Held) error {
	v := heldView{held.Name(), held.Key(), int64(held.Token()), leaseID(held.Lease())}
	err := r.print(document{value: v, table: pairs([][]string{
		{"lock", v.Name}, {"token", strconv.FormatInt(v.Token, 10)}, {"lease", v.Lease}, {"key", v.Key},
	})})
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-held.Context().Done():
		return lostLock(held)
	}
}

// lostLock says that and why a lock is held no more.
func lostLock(held *client.Held) error {
	why := "not renewed in time"
	if cause := held.Check(); cause != nil {
		why = message(cause)
	}
	return coded{exitLost, fault.New("", fault.Conflict, "%s: the lock is lost: %s", held.Name(), why)}
}

// environment tells a command what is held for it.
func (a App) environment(held *client.Held, now time.Time) []string {
	return append(append([]string{}, a.Environ...),
		"BLACKHOLE_LOCK_NAME="+held.Name(),
		"BLACKHOLE_LOCK_TOKEN="+strconv.FormatInt(int64(held.Token()), 10),
		"BLACKHOLE_LOCK_LEASE="+leaseID(held.Lease()),
		fmt.Sprintf("BLACKHOLE_LOCK_DEADLINE=%d", now.Add(held.Remaining()).Unix()),
	)
}
