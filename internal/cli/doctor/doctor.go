// Package doctor examines a peer and its machine, and collects files for a report of a fault.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/settings"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/pkg/records"
)

// The states of a finding.
const (
	fine    = "ok"
	waiting = "wait" // ends by itself
	warned  = "warn" // works, and probably not as wanted
	broken  = "PROBLEM"
)

// finding is the result of one check.
type finding struct {
	Area  string    `json:"area"`
	State string    `json:"state"` // ok, wait, warn or PROBLEM
	Text  string    `json:"text"`
	Do    string    `json:"do,omitempty"` // the remedy
	Since time.Time `json:"since,omitzero"`
}

// told is the finding of a problem.
func told(p fault.Problem) finding {
	return finding{State: broken, Text: p.Finding(), Do: p.Remedy, Since: p.Since}
}

// Examine examines the data directory and the files of stopped peers: see cli.App.
type Examine func(c config.Config, now time.Time) (runs *fault.Problem, found []fault.Problem)

// facts are what the checks examine.
type facts struct {
	down    error             // why the peer does not answer; nil: it does
	status  discovery.Status  // of the running peer
	group   *coord.GroupState // nil: the peer takes no part in coordination
	groupBy error             // why the group is unknown
	peers   []discovery.PeerInfo
	failing []*instance.Instance // of this peer, in the default namespace: down, or without a result
	sold    client.Grants        // without the role service, empty
	bare    []string             // ids of own offers with access through the peer and no address to serve
	past    []discovery.Note     // of the last hour, about the peer itself
	here    bool                 // the peer runs on this machine

	runs  *fault.Problem  // the process of a peer that does not answer
	found []fault.Problem // what a start of a peer that does not answer would read

	// running are settings of the running peer by their keys; nil without the role admin, or if the peer runs on another machine.
	running  map[string]string
	settings config.Config // for a peer with the flags of this command
	machine  machine
	given    string // flags of the call that name the peer, for recommended commands
}

// check examines one area. An active condition of the area is all that is told. An empty text: nothing to say.
type check struct {
	area       string
	needs      bool // a running peer
	joined     bool // needs a peer that reached its network: what else is missing has that cause
	examine    func(*facts) finding
	conditions []string
}

// checks is the table of doctor, in the order of its output.
func checks() []check {
	names := func(list ...string) []string { return list }
	return []check{
		{"peer", false, false, checkPeer, nil},
		{"data", false, false, checkData, nil},
		{"ports", false, false, checkPorts, nil},
		{"network", true, false, checkNetwork, names("isolated", "address_limit", "other_network", "private_addresses", "no_way_in")},
		{"nat", true, true, checkNAT, names("not_reachable")},
		{"dht", true, true, checkDHT, nil},
		{"clock", true, true, checkClock, names("clock_offset")},
		{"dns", true, false, checkDNS, nil},
		{"disk", false, false, checkDisk, names("disk")},
		{"certificate", true, false, silent, names("certificate")},
		{"versions", true, true, checkVersions, names("older_keepers")},
		{"identity", true, false, fineIdentity, names("identity_in_use")},
		{"records", true, true, checkRecords, names("joining", "not_stored", "index_full", "cell_full")},
		{"instances", true, false, checkInstances, names("directory_refused", "set_aside", "front_failed")},
		{"grants", true, false, checkGrants, names("no_grants")},
		{"served", true, false, checkServed, nil},
		{"buyers", true, true, checkBuyers, nil},
		{"group", true, false, checkGroup, names("member_stopped", "no_group", "no_quorum", "no_reserve", "feature_level", "other_group", "states_differ")},
		{"past", true, false, checkPast, nil},
		{"callers", true, false, silent, names("pool_exhausted", "space_low")},
	}
}

// silent has nothing to say without a condition.
func silent(*facts) finding { return finding{} }

// checkPast tells what is over and may explain a complaint: the last suspension, and the last refusal of one caller.
func checkPast(f *facts) (found finding) {
	remedies := map[string]string{
		"suspended": "look at the host: memory, processor, snapshots of a virtual machine",
		"refused":   "the lines \"a caller got no place\" of the log name it: it closes what it needs no more, or uses one connection",
	}
	for _, n := range f.past {
		if do := remedies[n.Subject]; n.Kind == "peer" && do != "" {
			found = finding{State: warned, Text: "at " + term.At(n.At) + " " + n.Text, Do: do, Since: n.At}
		}
	}
	return found
}

func fineIdentity(*facts) finding {
	return finding{State: fine, Text: "no other machine with this identity found"}
}

// Command makes the command doctor.
func Command(con *term.Console, examine Examine) *cobra.Command {
	cmd := &cobra.Command{
		Use: "doctor", Short: "Examine the peer and say what to do", Args: command.NoArgs,
		Long: "Examine the running peer: its network, NAT, clock, DHT, name server, disk, records and group, and the versions\n" +
			"of the connected peers. Without a running peer, examine its data directory, disk and ports. Name server and disk\n" +
			"need the role admin on the peer's machine. The exit code is 1 after a problem.",
	}
	s := examined(con, cmd)
	r := remote.New(con, cmd, 10*time.Second)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := factsOf(s, examine, cmd, r)
		if err != nil {
			return err
		}
		return printFindings(r, diagnose(f))
	}
	return cmd
}

// examined adds the flags for the settings of the peer that a command examines.
func examined(con *term.Console, cmd *cobra.Command) *settings.Settings {
	s := &settings.Settings{Con: con}
	cmd.Flags().StringVar(&s.File, "config", "", "settings file (default DATA/"+settings.ConfigFile+" if it exists)")
	settings.DataFlag(cmd, "data directory")
	return s
}

// factsOf asks the peer and this machine.
func factsOf(s *settings.Settings, examine Examine, cmd *cobra.Command, r *remote.Peer) (*facts, error) {
	c, _, err := s.Load(cmd)
	if err != nil {
		return nil, err
	}
	f := &facts{settings: c, machine: thisMachine{}, given: r.Given()}
	f.down = r.Call(cmd.Context(), nil, f.ask)
	if fault.KindOf(f.down) == fault.Invalid { // a flag of this call
		return nil, f.down
	}
	if address, err := r.Address(); err == nil && f.down == nil && onThisMachine(address) {
		f.here = true
		_ = r.Call(cmd.Context(), nil, f.askSettings) // optional: it needs the role admin
	}
	if address, err := r.Address(); f.down != nil && !f.refused() && err == nil && onThisMachine(address) {
		f.runs, f.found = examine(c, r.Console.Now())
	}
	if remote.Expired(f.down) && len(f.found) > 0 { // what the files say, and not what the client saw
		f.runs, f.found = &f.found[0], f.found[1:]
	}
	return f, nil
}

// ask asks the peer for its own view.
func (f *facts) ask(ctx context.Context, c *operator.Client, _ []string) (err error) {
	if f.status, err = c.Status(ctx); err != nil {
		return err
	}
	if f.peers, err = c.Peers(ctx); err != nil {
		return err
	}
	notUp := instances.ListQuery{Selector: instance.Selector{Statuses: []instance.Status{instance.StatusDown, instance.StatusUnknown}}}
	if list, err := c.Agent().List(ctx, notUp); err == nil { // a peer can be without the agent
		f.failing = slices.DeleteFunc(slices.Clone(list.Instances), func(i *instance.Instance) bool { return i.Peer != f.status.PeerID })
	}
	if f.sold, err = c.Offers().Grants(ctx); err == nil && len(f.sold.Stocks) > 0 {
		own, err := c.Offers().List(ctx)
		for _, o := range own {
			addressed := slices.ContainsFunc(f.sold.Stocks, func(s client.Stock) bool { return s.ID == o.ID && s.Serve != "" })
			if err == nil && o.Metadata.Access == records.AccessPeer && !addressed {
				f.bare = append(f.bare, o.ID)
			}
		}
	}
	for e, err := range c.Events(ctx, operator.EventQuery{Since: "1h"}) {
		if f.past = e.Notes; err != nil { // a peer without events
			f.past = nil
		}
		break
	}
	switch g, err := c.Coordination().Group(ctx); {
	case err == nil:
		f.group = &g
	case fault.KindOf(err) != fault.Unsupported:
		f.groupBy = err
	}
	return nil
}

// diagnose runs the checks.
func diagnose(f *facts) (out []finding) {
	lost := false // the peer has not reached its network
	all := checks()
	tell := func(area string, list ...finding) {
		for _, one := range list {
			if one.Text != "" {
				one.Area = area
				out = append(out, one)
			}
		}
	}
	for _, c := range all {
		if c.needs && f.down != nil || c.joined && lost {
			continue
		}
		list := f.active(func(name string) bool { return slices.Contains(c.conditions, name) })
		switch {
		case len(list) > 0:
		case c.area == "data" && len(f.found) > 0:
			for _, p := range f.found {
				list = append(list, told(p))
			}
		default:
			list = []finding{c.examine(f)}
		}
		lost = lost || c.area == "network" && list[0].State != fine && f.status.Peers == 0
		tell(c.area, list...)
	}
	tell("other", f.active(func(name string) bool {
		return !slices.ContainsFunc(all, func(c check) bool { return slices.Contains(c.conditions, name) })
	})...)
	return out
}

// active returns the findings of active conditions. One of the start passes.
func (f *facts) active(of func(name string) bool) (list []finding) {
	for _, c := range f.status.Conditions {
		if !of(c.Name) {
			continue
		}
		one := told(c.Problem)
		if c.Name == "joining" && time.Duration(f.status.UptimeSeconds)*time.Second < recent {
			one.State = waiting
		}
		list = append(list, one)
	}
	return list
}

// printFindings prints the findings. A problem is a failure.
func printFindings(r *remote.Peer, list []finding) error {
	err := r.Print(term.List("findings", list, []string{"AREA", "STATE", "FINDING"}, func(f *finding) []string {
		text := f.Text
		if f.Do != "" {
			text += ": " + f.Do
		}
		return []string{f.Area, f.State, text}
	}))
	if err != nil {
		return err
	}
	problems := 0
	for _, f := range list {
		if f.State == broken {
			problems++
		}
	}
	if problems > 0 {
		return exit.With(exit.Failure, fmt.Errorf("problems found: %d", problems))
	}
	return nil
}

func checkPeer(f *facts) finding {
	if f.down == nil {
		up := time.Duration(f.status.UptimeSeconds) * time.Second
		return finding{State: fine, Text: fmt.Sprintf("%s runs %s for %s, network %s, profile %s", f.status.PeerID, f.status.Version, up, f.status.Network, f.status.Profile)}
	}
	down := finding{State: broken, Text: exit.OneLine(f.down)}
	switch {
	case remote.Mismatch(f.down) != "" && !(remote.Expired(f.down) && f.runs != nil):
		down.Do = remote.Mismatch(f.down)
	case f.refused():
		down.Text, down.Do = "the peer runs and refuses this caller: "+down.Text, "name the right token: see `"+command.Program+" status --help`"
	case f.runs != nil:
		down = told(*f.runs)
	case f.hangs():
		down.Text = "a program listens at " + f.settings.GRPC + " and does not answer: the peer is stopped or overloaded, or this is another program"
		down.Do = "see its log and its processor time, continue it by SIGCONT, or restart it"
	case len(f.found) > 0:
		down.Do = "mend what stands below, and start it with `" + command.Program + " run`"
	default:
		down.Do = "start it with `" + command.Program + " run`, or name its address with --grpc"
	}
	return down
}

// hangs tells a peer that hangs from one that does not run: its port is taken. The settings may belong to a peer that was
// not asked.
func (f *facts) hangs() bool {
	return f.down != nil && strings.Contains(f.down.Error(), f.settings.GRPC) && f.machine.open("tcp", f.settings.GRPC) != nil
}

// refused tells a peer that refuses the caller from one that does not run.
func (f *facts) refused() bool {
	kind := fault.KindOf(f.down)
	return f.down != nil && (kind == fault.Unauthentic || kind == fault.Forbidden)
}

// absent reports whether no peer runs: then this command examines its directory and its ports.
func (f *facts) absent() bool { return f.down != nil && !f.refused() && !f.hangs() && f.runs == nil }

// recent is the age below which a condition of the start counts as passing.
const recent = 2 * time.Minute

func checkNetwork(f *facts) finding {
	s := f.status
	switch {
	case !s.Ready && time.Duration(s.UptimeSeconds)*time.Second < recent:
		return finding{State: waiting, Text: "no bootstrap peer was reached yet"}
	case !s.Ready:
		return finding{State: broken, Text: "no bootstrap peer was reached", Do: "check the setting bootstrap and the firewall"}
	case s.Peers == 0:
		text := "no other peer is connected: this peer is a network of its own, or the others have not found it yet"
		if s.RecordsOwn == 0 {
			return finding{State: fine, Text: text}
		}
		return finding{State: warned, Text: "nobody else finds the " + fault.Counted(s.RecordsOwn, "offer") + " of this peer: no other peer is connected", Do: BeSeen(s, f.given)}
	}
	return finding{State: fine, Text: fault.Counted(s.Peers, "peer") + " connected"}
}

// BeSeen says how others come to find the offers of a peer without connections. given are the flags that name it.
func BeSeen(s discovery.Status, given string) string {
	join := "stop this peer, `" + command.Program + " run --data NEW_DIRECTORY --join LINE`, with LINE of `" + command.Program + " invite` at one of its peers, and sell there"
	do := "start the others, or give them the line of `" + command.Program + " invite" + given + "`; to join another network instead: " + join
	switch s.Profile {
	case "dev":
		do = "profile dev never leaves this machine; to join a network: " + join
	case "public":
		do = "give --bootstrap ADDRESS of a peer that others know; there is no public network that everybody joins"
	}
	return do
}

func checkNAT(f *facts) finding {
	r := f.status.Reach
	found := finding{State: fine, Text: r.Text}
	switch {
	case r.State == "unreachable":
		found.State = broken
	case r.State == "checking":
		found.State = waiting
	case r.Direct+r.Relayed > 0:
		found.Text += fmt.Sprintf(" (%s, %d relayed)", fault.Counted(r.Direct, "direct connection"), r.Relayed)
	}
	return found
}

func checkDHT(f *facts) finding {
	s := f.status
	role := "asks keepers, is none itself"
	if s.Mode == "server" {
		role = "keeps records for others"
	}
	if s.RoutingTable == 0 && s.Peers > 0 {
		return finding{State: broken, Text: fmt.Sprintf("of %s connected, none serves the DHT", fault.Counted(s.Peers, "peer")), Do: "connect to a peer with a public address, or announce one"}
	}
	return finding{State: fine, Text: fmt.Sprintf("%s in the routing table; this peer %s", fault.Counted(s.RoutingTable, "peer"), role)}
}

func checkClock(f *facts) finding {
	text := "not compared with the clocks of keepers so far"
	if offset := f.status.ClockOffset; offset != nil {
		text = term.Offset(*offset) + " from the clocks of the keepers"
	}
	return finding{State: fine, Text: text}
}

func checkRecords(f *facts) finding {
	s := f.status
	found := finding{State: fine, Text: fmt.Sprintf("%d own, %d kept", s.RecordsOwn, s.RecordsKept)}
	switch {
	case len(s.RecordsUnstored) > 0:
		return finding{State: warned, Text: found.Text + "; no other peer holds " + strings.Join(s.RecordsUnstored, ", "), Do: "this peer announces them again: look at the network above"}
	case s.RecordsAnnouncing > 0:
		return finding{State: warned, Text: found.Text + fmt.Sprintf("; %s not taken yet by some keeper: complete answers may lack them", fault.Counted(s.RecordsAnnouncing, "change")), Do: "this peer tries again: look again in a minute"}
	}
	return found
}

// checkInstances names the instances of this peer whose check fails or has no result, whose offers nobody finds.
func checkInstances(f *facts) finding {
	const shown = 3
	if len(f.failing) == 0 {
		return finding{}
	}
	var which []string
	offers := ""
	var see []string
	for _, i := range f.failing {
		which = append(which, i.Service+" "+i.ID)
		see = append(see, "`"+command.Program+" instance show "+remote.Quoted(i.Service)+" "+remote.Quoted(i.ID)+f.given+"`")
		if len(i.Spec.Offer) > 0 {
			offers = "; nobody finds their offers until the check passes"
		}
	}
	return finding{
		State: warned, Text: fmt.Sprintf("%s of this peer not up, among them %s%s", fault.Counted(len(which), "instance"), strings.Join(which[:min(len(which), shown)], ", "), offers),
		Do: "see " + strings.Join(see[:min(len(see), shown)], ", "),
	}
}

// checkGrants says whether this peer grants what it sells.
func checkGrants(f *facts) finding {
	found := finding{State: fine}
	const shown = 3
	for i, s := range f.sold.Stocks {
		switch {
		case i < shown:
			found.Text += fmt.Sprintf(", %d of %d %s of %s free", s.Free, s.Total, s.Unit, s.ID)
		case i == shown:
			found.Text += fmt.Sprintf(", and %d more", len(f.sold.Stocks)-shown)
		}
	}
	found.Text = strings.TrimPrefix(found.Text, ", ")
	return found
}

// checkServed calls the services that this peer carries connections to.
func checkServed(f *facts) finding {
	const most = 8 // addresses; one that swallows packets takes its time
	if len(f.bare) > 0 {
		id := f.bare[0]
		return finding{
			State: broken,
			Text: fault.Counted(len(f.bare), "offer") + " with access through this peer and without an address, such as " + id +
				": who takes it reaches nothing",
			Do: "`curl -X PUT http://" + cmp.Or(f.running["http"], f.settings.HTTP) + "/v1/trade/served/" + id +
				` -d '{"address": "HOST:PORT"}'` + "`",
		}
	}
	asked := map[string]bool{}
	for _, s := range f.sold.Stocks {
		if s.Serve == "" || asked[s.Serve] || len(asked) == most || !f.here {
			continue
		}
		asked[s.Serve] = true
		if err := f.machine.answers(s.Serve); err != nil {
			return finding{
				State: broken,
				Text:  fmt.Sprintf("the service of %s gives no answer at %s: %v: who takes it reaches nothing", s.ID, s.Serve, exit.Cause(err)),
				Do:    "start it; until it runs, `" + command.Program + " offer pause " + remote.Quoted(s.ID) + f.given + "`",
			}
		}
	}
	if len(asked) == 0 {
		return finding{}
	}
	return finding{State: fine, Text: fault.Counted(len(asked), "service") + " that this peer serves to buyers answered"}
}

// checkBuyers says how buyers come to the services that this peer carries connections to.
func checkBuyers(f *facts) finding {
	if !slices.ContainsFunc(f.sold.Stocks, func(s client.Stock) bool { return s.Serve != "" }) {
		return finding{}
	}
	switch r := f.status.Reach; {
	case r.State == "checking":
		return finding{State: waiting, Text: "other peers still test how buyers reach this one"}
	case r.State == "unreachable":
		return finding{
			State: broken, Text: "no buyer from outside reaches this peer, and so nothing that it serves",
			Do: "give a public peer by `" + command.Program + " run --bootstrap ADDRESS`, or forward a port and name it by " +
				"`--announce ADDRESS`",
		}
	case r.State == "relayed" && r.Punched == 0 && r.Unpunched > 0:
		return finding{
			State: warned,
			Text:  fmt.Sprintf("a relay carries the bytes of buyers, within its bounds: none of %d tries made a direct way", r.Unpunched),
			Do:    "forward a port and name it by `" + command.Program + " run --announce ADDRESS`",
		}
	case r.State == "relayed":
		text := "buyers come through a hole in both routers where these allow one, else a relay carries their bytes"
		return finding{State: fine, Text: text}
	}
	return finding{State: fine, Text: "buyers connect directly"}
}

func checkGroup(f *facts) finding {
	switch g := f.group; {
	case f.groupBy != nil:
		return finding{State: broken, Text: exit.OneLine(f.groupBy)}
	case g == nil:
		return finding{State: fine, Text: "coordination is off"}
	case g.Missing != "":
		text, do, _ := strings.Cut(g.Missing, ". ") // before the condition no_quorum
		return finding{State: broken, Text: text, Do: do}
	case g.Phase == "removed":
		return finding{
			State: warned, Text: "an operator removed this peer from the group: it asks the members",
			Do: "`" + command.Program + " group add " + f.status.PeerID + "` at a member lets it in again",
		}
	case g.Phase == "stopped", g.Phase == "outlived":
		return finding{State: broken, Text: "this peer takes no part in the group any more"}
	case g.Leader == "":
		return finding{State: broken, Text: "the group has no leader", Do: "start its voters: see `" + command.Program + " group members" + f.given + "`"}
	default:
		text := fmt.Sprintf("%s of a group of %s, leader %s", g.Phase, fault.Counted(len(g.Voters), "voter"), called(g.Leader, g.NameOf(g.Leader)))
		if len(g.Voters) > 2 && g.Tolerance != "" && g.Survives == 0 { // before the condition
			return finding{State: warned, Text: text + ", survives " + g.Tolerance, Do: "start the silent voter: see `" + command.Program + " group members" + f.given + "`"}
		}
		if silent := unheard(g.Voters); len(silent) > 0 {
			return finding{State: warned, Text: text + "; silent: " + strings.Join(silent, ", "), Do: "start or replace it: see `" + command.Program + " group members" + f.given + "`"}
		}
		return finding{State: fine, Text: text}
	}
}

// called names a peer in a sentence.
func called(id, name string) string { return cmp.Or(name, term.ShortPeer(id)) }

// unheard names the voters whom the leader does not hear.
func unheard(voters []coord.Member) (names []string) {
	for _, m := range voters {
		if !m.Active {
			names = append(names, called(m.Peer, m.Name))
		}
	}
	return names
}
