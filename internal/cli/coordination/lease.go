package coordination

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Lease makes the command lease.
func Lease(con *term.Console) *cobra.Command {
	return command.Parent(&cobra.Command{
		Use: "lease", Short: "Grant, renew and revoke leases",
		Long: "Grant, renew and revoke leases. A lease without renewal ends after its time to\n" +
			"live, together with its locks and keys. blackholed lock hold manages its own lease.",
	}, leaseGrant(con), leaseRevoke(con), leaseKeepAlive(con), leaseShow(con), leaseList(con))
}

// LeaseID shows the id of a lease, which the peer hides from callers without a right to it.
func LeaseID(id coord.LeaseID) string {
	if id == coord.HiddenLease {
		return "hidden"
	}
	return strconv.FormatInt(int64(id), 10)
}

// ParseLease reads a lease id in decimal.
func ParseLease(s string) (coord.LeaseID, error) {
	id, err := strconv.ParseInt(s, 10, 64)
	if err != nil || id <= 0 {
		return 0, fault.Invalidf("ID", s, "must be a lease id, a whole number above 0, not %q", s)
	}
	return coord.LeaseID(id), nil
}

func leaseDocument(id coord.LeaseID, ttl time.Duration) term.Document {
	return term.Document{
		Value: coord.Lease{ID: id, TTL: ttl.Milliseconds()},
		Table: term.Table([]string{"ID", "TTL"}, [][]string{{LeaseID(id), ttl.String()}}),
	}
}

// leaseGrantArgs knows the form of etcdctl.
func leaseGrantArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		if _, err := strconv.ParseUint(args[0], 10, 32); err == nil {
			return fault.Invalidf("", args[0], "takes no argument: name the time to live by --ttl %ss", args[0])
		}
	}
	return command.NoArgs(cmd, args)
}

func leaseGrant(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{Use: "grant", Short: "Create a lease", Args: leaseGrantArgs}
	ttl := cmd.Flags().Duration("ttl", client.DefaultTTL, "time to live; the group raises or lowers it to its limits")
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Coordinates(func(ctx context.Context, c *operator.Client, _ []string) error {
		if *ttl < time.Millisecond {
			return fault.Invalidf("--ttl", *ttl, "must be at least 1ms")
		}
		id, granted, err := c.Locks().Grant(ctx, *ttl)
		if err != nil {
			return err
		}
		if granted != *ttl {
			r.Say("the group grants %v instead of %v: its limits", granted, *ttl)
		}
		return r.Print(leaseDocument(coord.LeaseID(id), granted))
	})
}

func leaseRevoke(con *term.Console) *cobra.Command {
	r := remote.New(con, &cobra.Command{Use: "revoke ID...", Short: "End leases with their locks and keys", Args: command.SomeArgs("ID")}, remote.DefaultTimeout)
	return r.Coordinates(func(ctx context.Context, c *operator.Client, args []string) error {
		ids := make([]coord.LeaseID, len(args))
		for i, s := range args {
			var err error
			if ids[i], err = ParseLease(s); err != nil {
				return err
			}
		}
		for _, id := range ids {
			if err := c.Locks().Revoke(ctx, client.LeaseID(id)); err != nil {
				return exit.Rename(err, LeaseID(id))
			}
		}
		return nil
	})
}

func leaseKeepAlive(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "keepalive ID", Short: "Renew a lease until interrupted", Args: command.OneArg("ID"),
		Long: "Renew a lease every third of its time to live, until interrupted or the lease ends.",
	}
	once := cmd.Flags().Bool("once", false, "renew the lease once")
	r := remote.New(con, cmd, 0)
	return r.Coordinates(func(ctx context.Context, c *operator.Client, args []string) error {
		id, err := ParseLease(args[0])
		if err != nil {
			return err
		}
		return keepAlive(ctx, r, c, id, *once)
	})
}

// keepAlive renews a lease. It repeats a failed renewal until the lease has expired.
func keepAlive(ctx context.Context, r *remote.Peer, c *operator.Client, id coord.LeaseID, once bool) error {
	var deadline time.Time
	for {
		asked := time.Now()
		ttl, err := renew(ctx, c, id)
		next := ttl / 3
		switch {
		case err == nil:
			deadline = asked.Add(ttl)
			if err := r.PrintNext(leaseDocument(coord.LeaseID(id), ttl)); err != nil || once {
				return err
			}
		case ctx.Err() == nil && exit.Hopeless(err) && asked.Before(deadline):
			r.Say("warning: not renewed: %s", exit.OneLine(err))
			next = time.Second
		default:
			return err
		}
		select {
		case <-time.After(next):
		case <-ctx.Done():
			return fault.Wrap("", ctx.Err())
		}
	}
}

// renew renews a lease once.
func renew(ctx context.Context, c *operator.Client, id coord.LeaseID) (time.Duration, error) {
	const timeout = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return c.Locks().Renew(ctx, client.LeaseID(id))
}

func leaseShow(con *term.Console) *cobra.Command {
	r := remote.New(con, &cobra.Command{Use: "show ID", Short: "Describe a lease with its keys", Args: command.OneArg("ID")}, remote.DefaultTimeout)
	return r.Coordinates(func(ctx context.Context, c *operator.Client, args []string) error {
		id, err := ParseLease(args[0])
		if err != nil {
			return err
		}
		l, err := FindLease(ctx, c, id)
		if err != nil {
			return exit.Rename(err, "ID")
		}
		return r.Print(LeaseDetail(l))
	})
}

// LeaseDetail shows one lease.
func LeaseDetail(l LeaseState) term.Document {
	return term.Document{Value: l, Table: term.Pairs([][]string{
		{"lease", LeaseID(l.ID)}, {"tag", l.Tag}, {"owner", term.OrDash(l.Owner)}, {"application", term.OrDash(l.Application)},
		{"ttl", millis(l.TTL)}, {"remaining", millis(l.Remaining)}, {"keys", term.OrDash(strings.Join(l.Keys, " "))},
	})}
}

func millis(ms int64) string { return (time.Duration(ms) * time.Millisecond).String() }

func leaseList(con *term.Console) *cobra.Command {
	r := remote.New(con, &cobra.Command{Use: "ls", Short: "List leases", Args: command.NoArgs}, remote.DefaultTimeout)
	return r.Coordinates(func(ctx context.Context, c *operator.Client, _ []string) error {
		var all []LeaseState
		for after := uint64(0); ; after = all[len(all)-1].Granted {
			page, err := Leases(ctx, c, after)
			if err != nil {
				return err
			}
			if all = append(all, page...); len(page) == 0 {
				break
			}
		}
		return r.Print(term.List("leases", all, []string{"ID", "TAG", "TTL", "REMAINING", "OWNER", "APPLICATION"}, func(l *LeaseState) []string {
			return []string{LeaseID(l.ID), l.Tag, millis(l.TTL), millis(l.Remaining), term.OrDash(l.Owner), term.OrDash(l.Application)}
		}))
	})
}
