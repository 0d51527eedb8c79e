package cli

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

func (a App) leaseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "lease", Short: "Grant, renew and end leases", Args: a.unknownCommand,
		Long: "Grant, renew and end leases. A lease ends when nobody renews it for its time to live, and\n" +
			"all that is bound to it ends with it. blackholed lock takes care of its own.",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.leaseGrant(), a.leaseRevoke(), a.leaseKeepAlive(), a.leaseTTL(), a.leaseList())
	return cmd
}

// leaseView is a lease as it is shown. Times are in seconds.
type leaseView struct {
	ID        string   `json:"id"`
	TTL       float64  `json:"ttl"`
	Remaining *float64 `json:"remaining,omitempty"`
	Owner     string   `json:"owner,omitempty"`
	Keys      []string `json:"keys,omitempty"`
}

func showLease(l client.LeaseState) leaseView {
	left := float64(l.Remaining) / 1000
	return leaseView{ID: leaseID(l.ID), TTL: float64(l.TTL) / 1000, Remaining: &left, Owner: l.Owner, Keys: l.Keys}
}

func leaseID(id client.LeaseID) string { return strconv.FormatInt(int64(id), 10) }

// parseLease reads an id, in decimal as it is shown.
func parseLease(s string) (client.LeaseID, error) {
	id, err := strconv.ParseInt(s, 10, 64)
	if err != nil || id <= 0 {
		return 0, fault.Invalidf("ID", s, "must be a lease's id, a whole number above 0, not %q", s)
	}
	return client.LeaseID(id), nil
}

func leaseDocument(v leaseView) document {
	return document{value: v, table: table([]string{"ID", "TTL"}, [][]string{{v.ID, secondsOf(v.TTL)}})}
}

func secondsOf(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}

func (a App) leaseGrant() *cobra.Command {
	cmd := &cobra.Command{Use: "grant", Short: "Make a lease", Args: noArgs}
	ttl := cmd.Flags().Duration("ttl", client.DefaultTTL, "time to live; the group moves it into its limits")
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *ttl < time.Millisecond {
			return fault.Invalidf("--ttl", *ttl, "must be at least 1ms")
		}
		return r.coordinate(cmd, func(ctx context.Context, c *client.Client) error {
			id, granted, err := c.GrantLease(ctx, *ttl)
			if err != nil {
				return err
			}
			return r.print(leaseDocument(leaseView{ID: leaseID(id), TTL: granted.Seconds()}))
		})
	}
	return cmd
}

func (a App) leaseRevoke() *cobra.Command {
	cmd := &cobra.Command{Use: "revoke ID...", Short: "End leases, and all that is bound to them", Args: someArgs("ID")}
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids := make([]client.LeaseID, len(args))
		for i, s := range args {
			var err error
			if ids[i], err = parseLease(s); err != nil {
				return err
			}
		}
		return r.coordinate(cmd, func(ctx context.Context, c *client.Client) error {
			for _, id := range ids {
				if err := c.RevokeLease(ctx, id); err != nil {
					return renameField(err, func(string) string { return leaseID(id) })
				}
			}
			return nil
		})
	}
	return cmd
}

func (a App) leaseKeepAlive() *cobra.Command {
	cmd := &cobra.Command{
		Use: "keepalive ID", Short: "Renew a lease until interrupted", Args: oneArg("ID"),
		Long: "Renew a lease every third of its time to live, until interrupted or the lease is gone.",
	}
	once := cmd.Flags().Bool("once", false, "renew it once")
	r := a.remoteFlags(cmd, 0)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := parseLease(args[0])
		if err != nil {
			return err
		}
		return r.coordinate(cmd, func(ctx context.Context, c *client.Client) error {
			return r.keep(ctx, c, id, *once)
		})
	}
	return cmd
}

// keep renews a lease. What fails is tried again for as long as the lease may live.
func (r *remote) keep(ctx context.Context, c *client.Client, id client.LeaseID, once bool) error {
	var dies time.Time
	for {
		asked := time.Now()
		ttl, err := renew(ctx, c, id)
		next := ttl / 3
		switch {
		case err == nil:
			dies = asked.Add(ttl)
			if err := r.printNext(leaseDocument(leaseView{ID: leaseID(id), TTL: ttl.Seconds()})); err != nil || once {
				return err
			}
		case ctx.Err() == nil && hopeless(err) && asked.Before(dies):
			r.app.say("warning: not renewed: %s", oneLine(err))
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
func renew(ctx context.Context, c *client.Client, id client.LeaseID) (time.Duration, error) {
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return c.RenewLease(ctx, id)
}

func (a App) leaseTTL() *cobra.Command {
	cmd := &cobra.Command{Use: "ttl ID", Short: "Describe a lease and what is bound to it", Args: oneArg("ID")}
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := parseLease(args[0])
		if err != nil {
			return err
		}
		return r.coordinate(cmd, func(ctx context.Context, c *client.Client) error {
			states, _, err := c.Coordination().Leases(ctx, client.LeaseQuery{ID: id})
			if err != nil {
				return renameField(err, func(string) string { return "ID" })
			}
			v := showLease(states[0])
			return r.print(document{value: v, table: pairs([][]string{
				{"lease", v.ID}, {"owner", orDash(v.Owner)}, {"ttl", secondsOf(v.TTL)}, {"remaining", secondsOf(*v.Remaining)},
				{"keys", orDash(strings.Join(v.Keys, " "))},
			})})
		})
	}
	return cmd
}

func (a App) leaseList() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "List leases", Args: noArgs}
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return r.coordinate(cmd, func(ctx context.Context, c *client.Client) error {
			var views []leaseView
			for q := (client.LeaseQuery{}); ; {
				states, _, err := c.Coordination().Leases(ctx, q)
				if err != nil {
					return err
				}
				if len(states) == 0 {
					break
				}
				for _, l := range states {
					views = append(views, showLease(l))
				}
				q.After = states[len(states)-1].ID
			}
			rows := make([][]string, len(views))
			for i, v := range views {
				rows[i] = []string{v.ID, secondsOf(v.TTL), secondsOf(*v.Remaining), orDash(v.Owner)}
			}
			return r.print(document{
				value: map[string]any{"leases": emptied(views)}, items: itemsOf(views),
				table: table([]string{"ID", "TTL", "REMAINING", "OWNER"}, rows),
			})
		})
	}
	return cmd
}

// emptied makes a list that JSON shows as [] when it is empty.
func emptied[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
