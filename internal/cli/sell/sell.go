// Package sell has the command that puts this machine up for sale: it finds out what the machine has, asks the rest,
// writes an offer into a file and registers it.
package sell

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/doctor"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/offer"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/service"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/internal/platform/cities"
	"github.com/blackhole/blackhole/internal/platform/probe"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/pkg/records"
)

// Command makes the command sell.
func Command(con *term.Console) *cobra.Command {
	var children []*cobra.Command
	for _, k := range kinds() {
		children = append(children, sellCommand(con, k))
	}
	return command.Parent(&cobra.Command{
		Use: "sell", Short: "Put this machine up for sale: gpu, storage, cdn or bandwidth",
		Long: "Put this machine up for sale. The command finds out what the machine has, asks on a terminal what it\n" +
			"cannot find out, writes an offer into a file, and registers it at the running peer.",
		Example: "  " + command.Program + " sell gpu\n  " + command.Program + " sell " + kinds()[0].example,
	}, children...)
}

// seller is one call of a command.
type seller struct {
	kind
	*remote.Peer
	n                                []uint64 // of the kind's amounts
	model                            string   // of GPUs
	gpus                             int
	city                             offer.Place
	endpoint                         link
	id, title, currency, check, file string
	price                            float64
	yes                              bool
	serve                            string // local address that this peer carries connections to
	stock                            uint32
}

func sellCommand(con *term.Console, k kind) *cobra.Command {
	cmd := &cobra.Command{
		Use: k.name, Short: k.short, Args: command.NoArgs, Example: "  " + command.Program + " sell " + k.example,
		Long: k.short + ": find out what it has, ask the rest on a terminal, write an offer file\n" +
			"and register it at the running peer. Flags go before questions and before what is found out.\n\n" +
			"An endpoint of HTTP is checked: the file then describes an instance with an offer, which buyers find\n" +
			"until the check has failed three times. Other offers last until they are withdrawn.",
	}
	s := &seller{kind: k, Peer: remote.New(con, cmd, remote.DefaultTimeout), n: make([]uint64, len(k.amounts))}
	s.ConnectOnly = true // people think longer than calls take
	f := cmd.Flags()
	f.Float64Var(&s.price, "price", 0, "price per "+k.per+", in "+queries.DefaultCurrency+" or --currency")
	f.StringVar(&s.currency, "currency", queries.DefaultCurrency, "currency of the price")
	f.Var(&s.city, "city", "place: a city (berlin, \"San Jose, US\") or degrees (52.52,13.40)")
	s.endpoint.serve = &s.serve
	f.Var(&s.endpoint, "endpoint", "URL that buyers use, or HOST:PORT of a local service, as with --serve")
	f.StringVar(&s.serve, "serve", "", "HOST:PORT of a local TCP service: buyers reach it through this peer, with a grant; nobody else learns the address")
	f.Uint32Var(&s.stock, "stock", 0, "with --serve: units that can be taken (default: the GPUs, or 1)")
	f.StringVar(&s.check, "check", "", "URL of HTTP to check, or none (default: --endpoint, if it is HTTP)")
	f.StringVar(&s.id, "id", "", "id of the offer (default: "+k.name+" and the city)")
	f.StringVar(&s.title, "name", "", "name of the offer for people (default: "+k.title+" in the city)")
	f.StringVar(&s.file, "file", k.name+".yaml", "new file for the offer")
	f.BoolVar(&s.yes, "yes", false, "register without a question (required without a terminal)")
	for i, x := range k.amounts {
		f.Uint64Var(&s.n[i], x.flag, 0, x.usage)
	}
	if k.subtype == "gpu" {
		f.StringVar(&s.model, "gpu-model", "", "model of the GPUs, such as H100 (default: what the driver says)")
		f.IntVar(&s.gpus, "gpus", 1, "number of GPUs (default with a driver: all)")
	}
	command.CompleteBy(cmd, "city", offer.CompleteCity)
	return s.Calls(s.run)
}

// run finds out, asks, writes and registers.
func (s *seller) run(ctx context.Context, c *operator.Client, _ []string) error {
	if _, err := os.Lstat(s.file); !errors.Is(err, fs.ErrNotExist) {
		return s.taken()
	}
	if s.currency != strings.ToUpper(s.currency) {
		return fault.Invalidf("--currency", s.currency, "must be a code in capitals, such as EUR: buyers compare prices of one code")
	}
	a := &asker{con: s.Console, cmd: s.Cmd, in: bufio.NewScanner(s.Stdin)}
	o, err := s.offer(ctx, a)
	if err != nil {
		return err
	}
	if s.endpoint.url != nil {
		if host := s.endpoint.url.Hostname(); host == "localhost" || net.ParseIP(host).IsLoopback() {
			s.Say("warning: only this machine reaches %s: buyers elsewhere need another --endpoint, or --serve HOST:PORT in its place", s.endpoint.text)
		}
	}
	text, again, err := s.document(o)
	if err != nil {
		return err
	}
	if err := s.unused(ctx, c, o.ID); err != nil {
		return err
	}
	if err := s.write(text); err != nil {
		return err
	}
	s.Say("wrote %s", s.file)
	if !s.yes {
		for line := range strings.Lines(strings.TrimSpace(string(text))) {
			s.Say("%s", strings.TrimSuffix(line, "\n"))
		}
		if yes, err := a.agreed(ctx, "Register this offer?"); err != nil || !yes {
			s.Say("not registered: edit %s, then %s", s.file, again)
			return err
		}
	}
	within, cancel := s.Connecting(ctx)
	defer cancel()
	if err := s.register(within, c, o, text, again); err != nil {
		s.Say("%s is kept: %s tries again", s.file, again)
		return err
	}
	return nil
}

func (s *seller) taken() error {
	return fault.Invalidf("--file", s.file, "%s exists and is never overwritten: name another file, and another --id for a second offer", s.file)
}

// unused refuses the id of another sale, at any peer of the group: an instance would replace it. Without an answer the registration says why.
func (s *seller) unused(ctx context.Context, c *operator.Client, id string) error {
	ctx, cancel := s.Connecting(ctx)
	defer cancel()
	_, err := c.Offers().Get(ctx, id)
	sold := err == nil
	if !sold && s.check != none {
		name := instance.Name{Namespace: instance.DefaultNamespace, Service: s.service()}
		got, err := c.Agent().Discover(ctx, instance.Query{Name: name, Selector: instance.Selector{AnyStatus: true, ID: id}}) // of all peers of the group
		sold = err == nil && len(got.Instances) > 0
	}
	if sold {
		return fault.Invalidf("--id", id, "%s is sold already: name another --id for a second offer, or edit the file of the first one and register it", id)
	}
	return nil
}

// write creates the file.
func (s *seller) write(text []byte) error {
	f, err := os.OpenFile(s.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return s.taken()
	}
	if err != nil {
		return fault.Invalidf("--file", s.file, "%w", err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return fault.Invalidf("--file", s.file, "%w", err)
	}
	return nil
}

// offer makes the offer of flags, findings and answers.
func (s *seller) offer(ctx context.Context, a *asker) (records.Offer, error) {
	sold, err := s.measure(ctx, a)
	if err != nil {
		return records.Offer{}, err
	}
	for _, flag := range []string{"price", "city", "endpoint"} {
		if flag == "endpoint" && s.serve != "" {
			continue
		}
		if err := a.need(ctx, flag, ""); err != nil {
			return records.Offer{}, err
		}
	}
	if !s.yes && !s.Terminal.Input {
		a.missing = append(a.missing, "--yes")
	}
	if err := a.lacks(); err != nil {
		return records.Offer{}, err
	}
	if _, port, err := net.SplitHostPort(s.serve); s.serve != "" && (err != nil || port == "") {
		return records.Offer{}, fault.Invalidf("--serve", s.serve, "must be HOST:PORT of a TCP service, such as 127.0.0.1:11434")
	}
	where := s.city.Location()
	near := where.City
	near = cmp.Or(near, s.city.String())
	s.id = cmp.Or(s.id, slug(s.name+"-"+near))
	s.title = cmp.Or(s.title, s.kind.title+" in "+near)
	o := records.Offer{
		ID: s.id, Metadata: records.Metadata{Type: s.of, Subtype: s.subtype, Name: s.title},
		Capabilities: sold, Location: where,
		Pricing: &records.Pricing{Currency: s.currency, BasePrice: &s.price, PriceUnit: s.unit},
	}
	if s.endpoint.text != "" {
		o.Metadata.Endpoints = []string{s.endpoint.text}
	}
	switch {
	case s.serve != "":
		o.Metadata.Access, o.Metadata.Protocols = records.AccessPeer, s.speaks(ctx)
		o.Metadata.Stock = &records.Stock{Unit: "slot", Total: cmp.Or(s.stock, 1)}
		if s.subtype == "gpu" {
			o.Metadata.Stock = &records.Stock{Unit: "gpu", Total: cmp.Or(s.stock, uint32(max(s.gpus, 1)))} //nolint:gosec // at most 64
		}
	case s.stock > 0:
		return o, fault.Invalidf("--stock", s.stock, "needs --serve")
	}
	return o, s.fields().Rename(o.Validate())
}

// speaks names the protocol of the service behind --serve, if it answers one now: other peers then check it by that.
func (s *seller) speaks(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, checkTime/2)
	defer cancel()
	p, dialer := probe.New(probe.Config{Trusted: true}), net.Dialer{}
	for _, name := range []string{"ollama", "openai", "http"} { // the last one answers for many others
		t := probe.Carried([]string{name}).Over(func(ctx context.Context) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", s.serve)
		})
		if o, _ := p.Probe(ctx, t); o.State == probe.Answers {
			return []string{name}
		}
	}
	return nil
}

// fields names the flags for the fields of an offer.
func (s *seller) fields() exit.Fields {
	return exit.Fields{
		"id": "", "metadata.name": "--name", "metadata.endpoints": "--endpoint", "pricing.base_price": "--price", "pricing.currency": "--currency",
		"location.latitude": "--city", "location.longitude": "--city", "metadata.stock.total": "--stock",
	}
}

// slug is a text in small letters, digits and hyphens.
func slug(s string) string {
	words := strings.FieldsFunc(cities.Plain(s), func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
	return strings.Join(words, "-")
}

// register registers the content of the file, and shows who finds the offer.
func (s *seller) register(ctx context.Context, c *operator.Client, o records.Offer, text []byte, again string) error {
	if s.serve != "" { // before anybody finds the offer
		if err := c.Offers().Serve(ctx, o.ID, s.serve); err != nil {
			return exit.Fields{"address": "--serve"}.Rename(err)
		}
	}
	checked := "none: the offer lasts until it is withdrawn"
	announced, alone := true, false
	if s.check == none {
		got, err := c.Offers().Register(ctx, o)
		if err != nil {
			return s.fields().Rename(err)
		}
		if alone = got.Stored.ThisPeerOnly; !alone { // "seen by" says that
			s.warn(got.Warnings)
		}
	} else {
		list, err := service.ParseInstances(text, "")
		if err != nil {
			return err
		}
		got, err := c.Agent().Register(ctx, list[0])
		if err != nil {
			return exit.Fields{"id": "", "health_check.endpoint": "--check", "host": "--check"}.Rename(err)
		}
		s.warn(got.Warnings)
		if checked, announced, err = s.firstCheck(ctx, c, got.Key, o.ID); err != nil {
			return err
		}
	}
	status, err := s.settled(ctx, c)
	if err != nil {
		return err
	}
	if s.check != none { // a receipt of an offer says them
		for _, name := range []string{"clock_offset", "identity_in_use"} {
			if at := slices.IndexFunc(status.Conditions, func(c discovery.Condition) bool { return c.Name == name }); at >= 0 {
				s.warn([]string{name + ": " + status.Conditions[at].Message})
			}
		}
	}
	if s.check != none || alone { // no receipt was shown
		s.warn(partial(o, status.PeerID))
	}
	by, more := seenBy(status, o, announced, alone, s.Given())
	return s.Print(term.Document{
		Value: map[string]any{"id": o.ID, "file": s.file, "check": checked, "announced": announced, "seen_by": by, "next": more},
		Table: term.Pairs([][]string{{"offer", o.ID}, {"check", checked}, {"seen by", by}, {"to be seen", more}, {"to change", "edit " + s.file + ", then " + again}, {"to end", s.ending(o.ID)}}),
	})
}

// settled is the state of the peer as soon as it has announced its changes, or after a while.
func (s *seller) settled(ctx context.Context, c *operator.Client) (discovery.Status, error) {
	within, cancel := context.WithTimeout(ctx, checkTime/2)
	defer cancel()
	tick := time.NewTicker(checkStep)
	defer tick.Stop()
	for {
		status, err := c.Status(ctx)
		if err != nil || status.Peers == 0 || status.RecordsAnnouncing == 0 {
			return status, err
		}
		select {
		case <-within.Done():
			return status, nil
		case <-tick.C:
		}
	}
}

// ending is the command that ends the sale.
func (s *seller) ending(id string) string {
	if s.check == none {
		return command.Program + " offer withdraw " + id + s.Given()
	}
	return command.Program + " instance deregister " + s.service() + " " + id + s.Given()
}

func (s *seller) warn(texts []string) {
	for _, text := range texts {
		s.Say("warning: %s", text)
	}
}

// partial says what the checks of others leave out of the endpoints of an offer.
func partial(o records.Offer, peer string) (all []string) {
	for _, text := range o.Metadata.Endpoints {
		if t, ok := probe.Parse(text, o.Metadata.Protocols); ok && t.Withheld() != "" {
			all = append(all, t.Partial(peer))
		}
	}
	return all
}

// seenBy says who finds an offer now, and what helps others to find it. given are the flags that name the peer.
func seenBy(status discovery.Status, o records.Offer, announced, alone bool, given string) (by, more string) {
	more = "buyers: " + command.Program + " offer find --type " + o.Metadata.Type
	switch {
	case status.Peers == 0:
		by, more = "nobody else: no other peer is connected", doctor.BeSeen(status, given)
	case !announced:
		by = "nobody yet: the check has to pass"
		more = "mend the endpoint, or name another --check"
	case alone || slices.Contains(status.RecordsUnstored, o.ID):
		by, more = "nobody else yet: no other peer holds it; this peer announces it again", "see "+command.Program+" doctor"+given
	case status.RecordsAnnouncing > 0:
		by, more = "perhaps not by all: this peer still announces it, and complete answers may lack it", "see "+command.Program+" doctor"+given
	default:
		by = "the peers of network " + status.Network + " (" + fault.Counted(status.Peers, "peer") + " connected)"
	}
	return by, more
}

// Bounds of the wait for the first check.
const (
	checkTime = 10 * time.Second
	checkStep = 100 * time.Millisecond
)
