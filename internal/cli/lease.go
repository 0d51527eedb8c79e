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

func leaseCommand(con *console) *cobra.Command {
	return parent(&cobra.Command{
		Use: "lease", Short: "Grant, renew and revoke leases",
		Long: "Grant, renew and revoke leases. A lease without renewal ends after its time to\n" +
			"live, together with its locks and keys. blackholed lock hold manages its own lease.",
	}, leaseGrant(con), leaseRevoke(con), leaseKeepAlive(con), leaseShow(con), leaseList(con))
}

// leaseView is the JSON form of a lease. Times are in seconds.
type leaseView struct {
	ID          string   `json:"id"`
	Tag         string   `json:"tag,omitempty"`
	TTL         float64  `json:"ttl"`
	Remaining   *float64 `json:"remaining,omitempty"`
	Owner       string   `json:"owner,omitempty"`
	Application string   `json:"application,omitempty"`
	Keys        []string `json:"keys,omitempty"`
}

func showLease(l client.LeaseState) leaseView {
	left := float64(l.Remaining) / 1000
	return leaseView{
		ID: leaseID(l.ID), Tag: l.Tag, TTL: float64(l.TTL) / 1000, Remaining: &left, Owner: l.Owner, Application: l.Application, Keys: l.Keys,
	}
}

// leaseID shows the id of a lease, which the peer hides from callers without a right to it.
func leaseID(id client.LeaseID) string {
	if id == client.HiddenLease {
		return "hidden"
	}
	return strconv.FormatInt(int64(id), 10)
}

// parseLease reads a lease id in decimal.
func parseLease(s string) (client.LeaseID, error) {
	id, err := strconv.ParseInt(s, 10, 64)
	if err != nil || id <= 0 {
		return 0, fault.Invalidf("ID", s, "must be a lease id, a whole number above 0, not %q", s)
	}
	return client.LeaseID(id), nil
}

func leaseDocument(v leaseView) document {
	return document{value: v, table: table([]string{"ID", "TTL"}, [][]string{{v.ID, secondsOf(v.TTL)}})}
}

func secondsOf(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}

func leaseGrant(con *console) *cobra.Command {
	cmd := &cobra.Command{Use: "grant", Short: "Create a lease", Args: noArgs}
	ttl := cmd.Flags().Duration("ttl", client.DefaultTTL, "time to live; the group raises or lowers it to its limits")
	r := newRemote(con, cmd, defaultTimeout)
	return r.coordinates(func(ctx context.Context, c *client.Client, _ []string) error {
		if *ttl < time.Millisecond {
			return fault.Invalidf("--ttl", *ttl, "must be at least 1ms")
		}
		id, granted, err := c.Leases().Grant(ctx, *ttl)
		if err != nil {
			return err
		}
		return r.print(leaseDocument(leaseView{ID: leaseID(id), TTL: granted.Seconds()}))
	})
}

func leaseRevoke(con *console) *cobra.Command {
	r := newRemote(con, &cobra.Command{Use: "revoke ID...", Short: "End leases with their locks and keys", Args: someArgs("ID")}, defaultTimeout)
	return r.coordinates(func(ctx context.Context, c *client.Client, args []string) error {
		ids := make([]client.LeaseID, len(args))
		for i, s := range args {
			var err error
			if ids[i], err = parseLease(s); err != nil {
				return err
			}
		}
		for _, id := range ids {
			if err := c.Leases().Revoke(ctx, id); err != nil {
				return renameField(err, leaseID(id))
			}
		}
		return nil
	})
}

func leaseKeepAlive(con *console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "keepalive ID", Short: "Renew a lease until interrupted", Args: oneArg("ID"),
		Long: "Renew a lease every third of its time to live, until interrupted or the lease ends.",
	}
	once := cmd.Flags().Bool("once", false, "renew the lease once")
	r := newRemote(con, cmd, 0)
	return r.coordinates(func(ctx context.Context, c *client.Client, args []string) error {
		id, err := parseLease(args[0])
		if err != nil {
			return err
		}
		return r.keepAlive(ctx, c, id, *once)
	})
}

// keepAlive renews a lease. It repeats a failed renewal until the lease has expired.
func (r *remote) keepAlive(ctx context.Context, c *client.Client, id client.LeaseID, once bool) error {
	var deadline time.Time
	for {
		asked := time.Now()
		ttl, err := renew(ctx, c, id)
		next := ttl / 3
		switch {
		case err == nil:
			deadline = asked.Add(ttl)
			if err := r.printNext(leaseDocument(leaseView{ID: leaseID(id), TTL: ttl.Seconds()})); err != nil || once {
				return err
			}
		case ctx.Err() == nil && hopeless(err) && asked.Before(deadline):
			r.say("warning: not renewed: %s", oneLine(err))
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
	const timeout = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return c.Leases().Renew(ctx, id)
}

func leaseShow(con *console) *cobra.Command {
	r := newRemote(con, &cobra.Command{Use: "show ID", Short: "Describe a lease with its keys", Args: oneArg("ID")}, defaultTimeout)
	return r.coordinates(func(ctx context.Context, c *client.Client, args []string) error {
		id, err := parseLease(args[0])
		if err != nil {
			return err
		}
		states, _, err := c.Coordination().Leases(ctx, client.LeaseQuery{ID: id})
		if err != nil {
			return renameField(err, "ID")
		}
		return r.print(leaseDetail(showLease(states[0])))
	})
}

func leaseDetail(v leaseView) document {
	return document{value: v, table: pairs([][]string{
		{"lease", v.ID}, {"tag", v.Tag}, {"owner", orDash(v.Owner)}, {"application", orDash(v.Application)}, {"ttl", secondsOf(v.TTL)}, {"remaining", secondsOf(*v.Remaining)},
		{"keys", orDash(strings.Join(v.Keys, " "))},
	})}
}

func leaseList(con *console) *cobra.Command {
	r := newRemote(con, &cobra.Command{Use: "ls", Short: "List leases", Args: noArgs}, defaultTimeout)
	return r.coordinates(func(ctx context.Context, c *client.Client, _ []string) error {
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
			q.After = states[len(states)-1].Granted
		}
		return r.print(listDocument("leases", views, []string{"ID", "TAG", "TTL", "REMAINING", "OWNER", "APPLICATION"}, func(v *leaseView) []string {
			return []string{v.ID, v.Tag, secondsOf(v.TTL), secondsOf(*v.Remaining), orDash(v.Owner), orDash(v.Application)}
		}))
	})
}
