package peer

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/coordination"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/group"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/service"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

const (
	topInterval = 2 * time.Second
	topTimeout  = 5 * time.Second // of the calls for one picture
	topLocks    = 50              // that a picture asks for
)

// Top makes the command top.
func Top(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "top", Short: "Watch the peer, its group, services and locks", Args: command.NoArgs,
		Long: "Show peer, group, connected peers, services and locks, with rates of change, until q or an interrupt. Without\n" +
			"a terminal, or with -o json, ndjson or yaml, show them once.",
	}
	interval := cmd.Flags().Duration("interval", topInterval, "time between two pictures, at least 100ms")
	namespace := service.NamespaceFlag(cmd)
	r := remote.New(con, cmd, 0)
	return r.Calls(func(ctx context.Context, c *operator.Client, _ []string) error {
		if *interval < 100*time.Millisecond {
			return fault.Invalidf("--interval", *interval, "must be at least 100ms")
		}
		ask := func(ctx context.Context) (*overview, error) { return askOverview(ctx, c, *namespace) }
		if con.Terminal.Size == nil || r.Format != term.AsTable {
			ctx, cancel := context.WithTimeout(ctx, topTimeout)
			defer cancel()
			v, err := ask(ctx)
			if err != nil {
				return err
			}
			return r.Print(term.Document{Value: v, Table: picture{now: v}})
		}
		return animate(ctx, con, *interval, ask)
	})
}

// animate draws a picture in each interval, on the alternate screen of the terminal, until ctx ends. A peer that does
// not answer shows as such, except at the first time.
func animate(ctx context.Context, c *term.Console, interval time.Duration, ask func(context.Context) (*overview, error)) error {
	const begin, end = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l" // xterm: alternate screen, hidden cursor; ECMA-48 below
	p, err := picture{}.next(ctx, ask)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(c.Stdout, begin); err != nil {
		return fault.As("cli.print", fault.Internal, err)
	}
	defer func() { _, _ = io.WriteString(c.Stdout, end) }() // a terminal that is gone needs no restoring
	quit, restore := c.Quit()
	defer restore()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		s := c.Screen()
		_, rows := c.Terminal.Size()
		p.rows = rows
		frame := strings.ReplaceAll(strings.TrimSuffix(p.On(s), "\n"), "\n", "\x1b[K\r\n")
		if _, err := io.WriteString(c.Stdout, "\x1b[H"+frame+"\x1b[K\x1b[J"); err != nil {
			return fault.As("cli.print", fault.Internal, err)
		}
		select {
		case <-quit:
			return nil
		case <-ctx.Done():
			return nil // an interrupt or --timeout is the regular end
		case <-tick.C:
		}
		p, _ = p.next(ctx, ask)
	}
}

// overview is what one picture shows.
type overview struct {
	Status   discovery.Status         `json:"status"`
	Peers    []discovery.PeerInfo     `json:"peers"`
	Group    *coord.GroupState        `json:"group,omitempty"`
	Services []instance.Summary       `json:"services"`
	Locks    []coordination.LockState `json:"locks"`
	Unknown  []string                 `json:"unknown,omitempty"` // parts without an answer, and why

	at time.Time
}

// askOverview asks for all parts. A part without an answer is in Unknown, but the status of the peer is required.
func askOverview(ctx context.Context, c *operator.Client, namespace string) (*overview, error) {
	v := &overview{Peers: []discovery.PeerInfo{}, Services: []instance.Summary{}, Locks: []coordination.LockState{}, at: time.Now()}
	var err error
	if v.Status, err = c.Status(ctx); err != nil {
		return nil, err
	}
	part := func(name string, err error) bool {
		if err != nil && fault.KindOf(err) != fault.Unsupported { // Unsupported: the plane is off
			v.Unknown = append(v.Unknown, name+": "+exit.OneLine(err))
		}
		return err == nil
	}
	if connected, err := c.Peers(ctx); part("peers", err) {
		v.Peers = term.Emptied(connected)
	}
	if g, err := c.Coordination().Group(ctx); part("group", err) {
		v.Group = &g
	}
	if services, err := c.Services().List(ctx, namespace); part("services", err) {
		v.Services = term.Emptied(services.Services)
	}
	if v.Group != nil {
		locks, err := coordination.Locks(ctx, c, "", "", topLocks)
		part("locks", err)
		v.Locks = term.Emptied(locks)
	}
	return v, nil
}

// picture lays out an overview, and the changes since the one before.
type picture struct {
	now, before *overview // before is nil at first
	rows        int       // of the screen; 0: any
	lost        string    // why the peer does not answer; now is then the last answer
}

// next asks for the next picture. On an error it shows the last answer.
func (p picture) next(ctx context.Context, ask func(context.Context) (*overview, error)) (picture, error) {
	ctx, cancel := context.WithTimeout(ctx, topTimeout)
	defer cancel()
	v, err := ask(ctx)
	if err != nil {
		p.lost = exit.OneLine(err)
		return p, err
	}
	return picture{now: v, before: p.now}, nil
}

// On implements term.Layout.
func (p picture) On(s term.Screen) string {
	head := term.Pairs(p.head()).On(s)
	lists := p.lists()
	room := 0
	if p.rows > 0 {
		const title = 3 // an empty line, the header, and "more"
		room = max((p.rows-strings.Count(head, "\n"))/len(lists)-title, 1)
	}
	text := head
	for _, g := range lists {
		if more := len(g.Rows) - room; room > 0 && more > 0 {
			g.Rows, g.Notes = g.Rows[:room], []string{fmt.Sprintf("%d more", more)}
		}
		for _, row := range g.Rows { // each row has one line
			last := len(row) - 1
			row[last] = term.CutTo(term.Clean(row[last]), term.NarrowText)
		}
		text += "\n" + g.On(s)
	}
	return firstLines(text, p.rows)
}

// firstLines cuts text to the height of a screen, on which a further line would scroll.
func firstLines(text string, rows int) string {
	lines := strings.SplitAfter(text, "\n")
	if rows <= 0 || len(lines) <= rows {
		return text
	}
	return strings.Join(lines[:rows], "")
}

// head is the part about this peer and its group.
func (p picture) head() [][]string {
	v := p.now
	up := (time.Duration(v.Status.UptimeSeconds) * time.Second).Round(time.Second)
	rows := [][]string{
		{"peer", strings.TrimSpace(v.Status.Name + " " + term.ShortPeer(v.Status.PeerID) + ", " + v.Status.Version + ", up " + up.String())},
		{"network", fmt.Sprintf("%s, %s, %s", networkText(v.Status), fault.Counted(v.Status.Peers, "peer"), v.Status.Reach.Text)},
		{"offers", fmt.Sprintf("%d own, %d kept%s", v.Status.RecordsOwn, v.Status.RecordsKept, p.rate(func(o *overview) float64 { return float64(o.Status.RecordsKept) }))},
	}
	if g := v.Group; g != nil {
		rows = append(rows, []string{"group", fmt.Sprintf("%s, leader %s, term %d, survives %s", g.Phase, cmp.Or(g.NameOf(g.Leader), term.ShortPeer(g.Leader)), g.Term, term.OrDash(g.Tolerance))},
			[]string{"keeps", fmt.Sprintf("%s, revision %d%s", group.Keeps(*g), g.Revision, p.rate(groupRevision))})
		if g.Missing != "" {
			rows = append(rows, []string{"missing", g.Missing})
		}
	}
	for _, c := range v.Status.Conditions {
		rows = append(rows, []string{"limited", c.Name + ": " + c.Message})
	}
	for _, line := range v.Unknown {
		rows = append(rows, []string{"unknown", line})
	}
	if p.lost != "" {
		rows = append(rows, []string{"lost", "no answer since " + v.at.Local().Format(time.TimeOnly) + ": " + p.lost})
	}
	return rows
}

func groupRevision(o *overview) float64 {
	if o.Group == nil {
		return 0
	}
	return float64(o.Group.Revision)
}

// rate is the change of a figure in a second, as " (+2.5/s)", or "" without a change.
func (p picture) rate(figure func(*overview) float64) string {
	if p.before == nil {
		return ""
	}
	took := p.now.at.Sub(p.before.at).Seconds()
	if change := figure(p.now) - figure(p.before); change != 0 && took > 0 {
		return fmt.Sprintf(" (%+.1f/s)", change/took)
	}
	return ""
}

// lists are the tables below the head.
func (p picture) lists() []term.Grid {
	services := term.Table([]string{"SERVICE", "STATE", "UP"}, nil)
	for _, s := range p.now.Services {
		state := instance.StatusUp
		if s.Up == 0 {
			state = instance.StatusDown
		} else if s.Up < s.Instances {
			state = instance.StatusUnhealthy
		}
		services.Rows = append(services.Rows, []string{s.Name, state.String(), fmt.Sprintf("%d of %d", s.Up, s.Instances)})
	}
	locks := term.Table([]string{"LOCK", "WAITING", "HELD", "HOLDER"}, nil)
	for _, l := range p.now.Locks {
		holder, held := "-", "-"
		if len(l.Holding) > 0 {
			holder, held = term.ShortPeers(term.OrDash(strings.TrimSpace(l.Holding[0].Application+" "+l.Holding[0].Holder))), coordination.Age(l.Holding[0].AgeMs)
		}
		locks.Rows = append(locks.Rows, []string{l.Name, fmt.Sprint(len(l.Waiting)), held, holder})
	}
	connected := term.Table([]string{"CONNECTED PEER", "LATENCY", "AGENT"}, nil)
	for _, one := range p.now.Peers {
		connected.Rows = append(connected.Rows, []string{cmp.Or(one.Name, term.ShortPeer(one.ID)), term.Millis(one.LatencyMs), term.OrDash(one.Agent)})
	}
	return []term.Grid{services, locks, connected}
}
