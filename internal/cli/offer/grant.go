package offer

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/file"
	"github.com/blackhole/blackhole/internal/cli/guard"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/operator"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// grantFields names the flags for the fields of a reservation.
func grantFields() exit.Fields {
	return exit.Fields{
		"key": "KEY", "units": "--units", "ttl_ms": "--for", "for": "--for", "max_price": "--max-price", "hold": "--hold",
		"token": "TOKEN", "listen": "--listen", "proof": "--proof", "request_id": "--request",
	}
}

const maxProof = 4 << 10 // bytes

func offerReserve(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "reserve KEY", Short: "Take units of an offer", Args: command.OneArg("KEY"),
		Long: "Take units of the offer with a key, from its provider, for a time. connect does so by itself.\n" +
			"A refusal says what is free, and what your share is. A provider that asks for a payment holds the units for a minute\n" +
			"and names its terms: repeat the command with its request id and a proof. JSON has what the provider hands over.",
	}
	var want client.Reservation
	var price float64
	var proof string
	f := cmd.Flags()
	f.Uint32Var(&want.Units, "units", 1, "units to take")
	f.DurationVar(&want.For, "for", 0, "time of the grant; 0: as long as the offer allows")
	f.Float64Var(&price, "max-price", 0, "most that the base price may be")
	f.BoolVar(&want.Hold, "hold", false, "hold the units for a minute, until the first connection confirms the grant")
	f.StringVar(&want.Request, "request", "", "id of the request, the same for each repetition; a new one by default")
	f.StringVar(&proof, "proof", "", "file with what the provider asks for, such as a proof of payment or a public key; - for standard input")
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *operator.Client, args []string) error {
		if want.Key = args[0]; cmd.Flags().Changed("max-price") {
			want.MaxPrice = &price
		}
		if proof != "" {
			var err error
			if want.Proof, err = file.Read(con, "--proof", proof, maxProof); err != nil {
				return err
			}
		}
		want.Request = cmp.Or(want.Request, rand.Text())
		g, err := c.Offers().Reserve(ctx, want)
		if terms, ok := fault.ValueOf(err).([]byte); ok && fault.KindOf(err) == fault.PaymentRequired {
			view := map[string]any{"request_id": want.Request, "terms": string(terms)}
			if json.Valid(terms) {
				view["terms"] = json.RawMessage(terms)
			}
			table := term.Pairs([][]string{{"request", want.Request}, {"terms", string(terms)}})
			if err := r.Print(term.Document{Value: view, Table: table}); err != nil {
				return err
			}
		}
		if err != nil {
			return grantFields().Rename(err)
		}
		if g.Handover != "" && r.Format == term.AsTable {
			r.Say("the provider hands over:\n%s", g.Handover)
		}
		return r.Print(term.Document{Value: g, Table: grantTable(false, g)})
	})
}

func offerGrants(con *term.Console) *cobra.Command {
	r := remote.New(con, &cobra.Command{Use: "grants", Short: "List the grants that the running peer holds, and those that it gave", Args: command.NoArgs}, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *operator.Client, _ []string) error {
		all, err := c.Offers().Grants(ctx)
		if err != nil {
			return err
		}
		for _, s := range all.Stocks {
			serves := ", reached at an endpoint of its own"
			if s.Serve != "" {
				serves = ", served from " + s.Serve
			}
			r.Say("%s: %d of %d %s free%s", s.ID, s.Free, s.Total, s.Unit, serves)
		}
		table := grantTable(false, all.Held...)
		table.Rows = append(table.Rows, grantTable(true, all.Given...).Rows...)
		return r.Print(term.Document{Value: all, Table: table})
	})
}

// grantTable has a row for each grant. Given ones name their consumer.
func grantTable(given bool, all ...client.Grant) term.Grid {
	var rows [][]string
	for _, g := range all {
		side, other := "held", g.ProviderID
		if given {
			side, other = "given", g.ConsumerID
		}
		rows = append(rows, []string{
			side, strconv.FormatUint(g.Token, 10), path.Base(g.Key), strconv.FormatUint(uint64(g.Units), 10), g.State, leftText(g.LeftMs), agreedPrice(g.Price, g.Currency, g.PriceUnit), other,
		})
	}
	return term.Table([]string{"SIDE", "TOKEN", "OFFER", "UNITS", "STATE", "LEFT", "PRICE", "PEER"}, rows)
}

func leftText(ms uint64) string {
	return (time.Duration(ms) * time.Millisecond).Round(time.Second).String()
}

func agreedPrice(price *float64, currency, unit string) string {
	if price == nil {
		return term.OrDash("")
	}
	return term.Number(*price) + " " + currency + " " + unit
}

func offerRelease(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "release TOKEN", Short: "Give a grant back, or take one that the running peer gave", Args: command.OneArg("TOKEN"),
		Long: "Give the units of a grant back that the running peer holds. With --given, take a grant from its holder:\nits connections end at once.",
	}
	given := cmd.Flags().Bool("given", false, "the grant is one that the running peer gave")
	reason := cmd.Flags().String("reason", "", "with --given: why, for the holder")
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *operator.Client, args []string) error {
		token, err := strconv.ParseUint(args[0], 10, 64)
		if err != nil {
			return fault.Invalidf("TOKEN", args[0], "must be a number: see %s offer grants", command.Program)
		}
		var g client.Grant
		if *given {
			g, err = c.Offers().Revoke(ctx, token, *reason)
		} else {
			g, err = c.Offers().Release(ctx, client.Grant{Token: token})
		}
		if err != nil {
			return exit.Fields{"token": "TOKEN", "reason": "--reason", "provider_id": "TOKEN"}.Answer(err)
		}
		return r.Print(term.Document{Value: g, Table: grantTable(*given, g)})
	})
}

// connector is one call of connect.
type connector struct {
	*remote.Peer
	flags   *queryFlags
	key     string // of an offer, or the token of a grant; empty: search
	listen  string
	want    client.Reservation
	renew   bool
	command []string
	warned  bool   // of the end
	way     string // direct or relayed
	failed  string // last error of a connection
}

// Connect makes the command connect.
func Connect(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "connect [KEY | TOKEN] [-- COMMAND ARG...]", Short: "Find, take and reach what somebody sells, at a local address",
		Long: "Find an offer by the flags of offer find, take units of it, and listen at a local address of the peer's machine\n" +
			"until interrupted. Each TCP connection there goes through the two peers to the service of the provider. The peers\n" +
			"connect directly where they can. A relay is the last resort, and its bounds are shown first.\n\n" +
			"The key of an offer takes the place of the search, and the token of a grant that the peer holds that of both.\n" +
			"A grant that this command took is given back at the end. If this program is killed, it ends with its time: --for, or else\n" +
			"ten minutes, which this program extends while it runs. A command after -- runs while the grant lasts, with\n" +
			"BLACKHOLE_CONNECT, the local address, in its environment.",
		Example: "  " + command.Program + " connect --type compute --gpu --near berlin --max-price 0.5 --for 1h --listen 127.0.0.1:11434\n" +
			"  " + command.Program + " connect --type compute --gpu -- sh -c 'curl http://$BLACKHOLE_CONNECT/api/tags'",
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash > 1 || dash < 0 && len(args) > 1 {
				return fault.Invalidf("KEY", nil, "must be given at most once; a command follows --")
			}
			return nil
		},
	}
	n := &connector{flags: newQueryFlags(cmd)}
	f := cmd.Flags()
	f.StringVar(&n.listen, "listen", "127.0.0.1:0", "local address to listen at; port 0: a free one")
	f.DurationVar(&n.want.For, "for", shortGrant, "time to take it for; 0: as long as the offer allows; without the flag it is extended while this program runs")
	f.Uint32Var(&n.want.Units, "units", 1, "units to take")
	f.BoolVar(&n.renew, "renew", false, "extend the grant before its end, as long as this program runs")
	n.Peer = remote.New(con, cmd, remote.DefaultTimeout)
	n.ConnectOnly = true
	return n.Calls(func(ctx context.Context, c *operator.Client, args []string) error {
		if dash := cmd.ArgsLenAtDash(); dash >= 0 {
			args, n.command = args[:dash], args[dash:]
		}
		if len(args) > 0 {
			n.key = args[0]
		}
		if err := guard.Check(n.command); err != nil {
			return err
		}
		return n.run(ctx, c)
	})
}

func (n *connector) run(ctx context.Context, c *operator.Client) error {
	within, cancel := n.Connecting(ctx)
	defer cancel()
	g, took, err := n.take(within, c)
	if err != nil {
		return err
	}
	defer func() {
		if !took {
			return
		}
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), remote.CleanupTimeout)
		defer cancel()
		if _, err := c.Offers().Release(clean, g); err == nil {
			n.Say("given back")
		}
	}()
	ctx, end := context.WithCancel(ctx)
	defer end()
	conn, state, err := c.Offers().Connect(ctx, g, n.listen)
	if err != nil {
		return grantFields().Rename(err)
	}
	if len(n.command) == 0 {
		err = n.Print(term.Document{
			Value: map[string]any{"listen": state.Listen, "grant": g},
			Table: term.Pairs([][]string{{"offer", path.Base(g.Key) + " of " + g.ProviderID}, {"grant", strconv.FormatUint(g.Token, 10) + ", " + leftText(g.LeftMs)}, {"price", agreedPrice(g.Price, g.Currency, g.PriceUnit)}, {"listen", state.Listen}}),
		})
	}
	if err != nil {
		return err
	}
	n.tell(state)
	followed := make(chan error, 1)
	go func() {
		defer end()
		followed <- n.follow(ctx, c, conn, state, g)
	}()
	if len(n.command) > 0 {
		child, err := guard.Start(n.Console, n.command, "BLACKHOLE_CONNECT="+state.Listen)
		if err == nil {
			err = child.Wait(ctx)
		}
		end()
		if lost := <-followed; fault.KindOf(lost) == fault.Gone {
			return lost
		}
		return err
	}
	return <-followed
}

// take finds an offer and takes units of it. Offers that refuse are told, and the next one is asked.
func (n *connector) take(ctx context.Context, c *operator.Client) (g client.Grant, took bool, err error) {
	if token, err := strconv.ParseUint(n.key, 10, 64); err == nil {
		all, err := c.Offers().Grants(ctx)
		if err != nil {
			return g, false, err
		}
		if i := slices.IndexFunc(all.Held, func(g client.Grant) bool { return g.Token == token }); i >= 0 {
			return all.Held[i], false, nil
		}
		return g, false, fault.Refused(fault.NotFound, "TOKEN", "names no grant that this peer holds: see %s offer grants%s", command.Program, n.Given())
	}
	short := !n.Cmd.Flags().Changed("for")
	n.renew = n.renew || short
	if n.key != "" {
		n.want.Key = n.key
		if n.Cmd.Flags().Changed("max-price") {
			n.want.MaxPrice = &n.flags.maxPrice
		}
		if g, err = c.Offers().Reserve(ctx, n.want); short && fault.FieldOf(err) == "ttl_ms" { // the offer allows less
			n.want.For = 0
			g, err = c.Offers().Reserve(ctx, n.want)
		}
		return g, true, grantFields().Rename(err)
	}
	q, err := n.flags.query(n.Cmd)
	if err != nil {
		return g, false, err
	}
	q.Where = append(q.Where, query.Clause{Field: "access", Op: query.OpAny, Values: []string{records.AccessPeer}})
	if err := queries.Check(q, queries.Defaults{}); err != nil {
		return g, false, queryFields().Rename(err)
	}
	t, err := take(ctx, n.Peer, c, q, client.Want{Units: n.want.Units, For: n.want.For, OneOffer: true})
	if fault.KindOf(err) == fault.NotFound && len(t.Answer.Results) == 0 {
		err = fault.New("", fault.NotFound, "no offer with stock and access through its peer was found: see %s offer find", command.Program)
	}
	if err != nil {
		return g, false, err
	}
	g = t.Grants[0]
	if ttl := time.Duration(g.TTLMs) * time.Millisecond; ttl < n.want.For && !n.renew {
		n.Say("%s is granted for %v at a time: --renew extends it", path.Base(g.Key), ttl)
	}
	for _, found := range t.Answer.Results {
		if found.Record.Key == g.Key {
			n.Say("took %d %s of %s from %s", g.Units, found.Record.Metadata.Stock.Unit, found.Record.ID, g.ProviderID)
		}
	}
	return g, true, nil
}

// take takes units of what a query finds, and tells who refused.
func take(ctx context.Context, r *remote.Peer, c *operator.Client, q query.Query, want client.Want) (client.Taken, error) {
	t, err := c.Offers().Take(ctx, q, want)
	for _, x := range t.Refused {
		r.Say("%s of %s: %s", path.Base(x.Key), term.ShortPeer(path.Base(path.Dir(x.Key))), exit.OneLine(x.Err))
	}
	for _, g := range t.Kept {
		r.Say("warning: %d of %s of %s was not given back, and ends in %s",
			g.Units, path.Base(g.Key), term.ShortPeer(g.ProviderID), leftText(g.LeftMs))
	}
	if t.Answer.Source != "" && (err != nil || !t.Answer.Complete) {
		summarise(r, t.Answer)
	}
	return t, queryFields().Rename(grantFields().Rename(err))
}

// Times of a grant.
const (
	shortGrant = 10 * time.Minute // without --for: a program that is killed keeps no units for long
	warnBefore = time.Minute      // its end
	renewPart  = 3                // renewed when one part in so many of its time is left
	firstRetry = time.Second      // after an extension that failed, then growing
	lastRetry  = 30 * time.Second
)

// follow tells how the connection stands, until it ends, and renews the grant.
func (n *connector) follow(ctx context.Context, c *operator.Client, conn *client.Connection, s client.ConnectionState, g client.Grant) error {
	ttl := time.Duration(g.TTLMs) * time.Millisecond
	end := n.Now().Add(time.Duration(s.LeftMs) * time.Millisecond)
	states, failed := make(chan client.ConnectionState), make(chan error, 1)
	go func() {
		for {
			s, err := conn.Next()
			if err != nil {
				failed <- err
				return
			}
			select {
			case states <- s:
			case <-ctx.Done():
				failed <- ctx.Err()
				return
			}
		}
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var again time.Time // no extension before
	pause := firstRetry
	for {
		select {
		case err := <-failed:
			if ctx.Err() != nil {
				return fault.Wrap("", ctx.Err())
			}
			return err
		case s := <-states:
			n.tell(s)
		case <-tick.C:
			switch left := end.Sub(n.Now()); {
			case n.renew && left < ttl/renewPart && !n.Now().Before(again):
				longer, err := c.Offers().Extend(ctx, g, 0)
				if err == nil {
					g, end = longer, n.Now().Add(time.Duration(longer.LeftMs)*time.Millisecond)
					pause, n.warned = firstRetry, false
					continue
				}
				again, pause = n.Now().Add(pause), min(2*pause, lastRetry)
				if n.renew = exit.Hopeless(err) || fault.KindOf(err) == fault.LimitReached; !n.warned || !n.renew {
					n.Say("warning: the grant was not extended%s, and ends in %v: %s",
						map[bool]string{false: " and will not be"}[n.renew], left.Round(time.Second), exit.OneLine(err))
					n.warned = true
				}
			case !n.warned && left < min(warnBefore, ttl/renewPart):
				n.Say("warning: the grant ends in %v", left.Round(time.Second))
				n.warned = true
			}
		}
	}
}

// tell says what has changed about the way, and why connections fail.
func (n *connector) tell(s client.ConnectionState) {
	if s.Path != "" && s.Path != n.way {
		n.way = s.Path
		text := "the peers are connected directly"
		if s.Path == "relayed" {
			text = "a relay carries the connections"
			if s.RelayBytes > 0 {
				text += ", at most " + strconv.FormatUint(s.RelayBytes, 10) + " bytes"
			}
			if s.RelayMs > 0 {
				text += ", for at most " + leftText(s.RelayMs)
			}
		}
		if s.RoundTripUs > 0 {
			text += ", round trip " + duration(float64(s.RoundTripUs)/1000)
		}
		n.Say("%s", text)
	}
	if s.Error != "" && s.Error != n.failed {
		n.Say("warning: a connection failed: %s", s.Error)
	}
	n.failed = s.Error
}
