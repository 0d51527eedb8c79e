package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/netns"
)

// document returns a document of the module that the program runs in.
func document(path string) (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fault.As("lab.document", fault.Unavailable, err)
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), filepath.FromSlash(path)))
	return string(text), fault.As("lab.document", fault.Unavailable, err)
}

// reads plays the command of docs/nat.md on the host of a peer behind NAT. It prints a line of the document's form: other relays,
// and other punched holes; the other home may have punched all.
func (w *world) reads(ctx context.Context, p *peer, kind nat) error {
	if kind != preserving {
		return nil // no hole can be punched
	}
	text, err := document("docs/nat.md")
	if err != nil {
		return err
	}
	text, _, _ = strings.Cut(text, "\n## ")
	steps := commands(text)
	if len(steps) != 1 || len(steps[0].printed) != 1 {
		return fault.New("lab.reads", fault.Invalid, "docs/nat.md should begin with one command that prints one line")
	}
	d := desk{host: p.host, home: p.spec.Data, env: w.environment(p.spec.Data)}
	printed, err := d.run(ctx, steps[0].command)
	if err != nil {
		return err
	}
	form := regexp.MustCompile(`…\w{8}( and …\w{8})*|hole punching works \(\d+ of \d+\)|no hole punch tried yet| +`)
	if want := steps[0].printed[0]; form.ReplaceAllString(printed, "X") != form.ReplaceAllString(want, "X") {
		w.violated("%s at %s printed %q, docs/nat.md says %q", steps[0].command, p.name, printed, want)
	}
	w.say("%s: $ %s", p.name, steps[0].command)
	return nil
}

// privateNetwork plays the commands of docs/nat.md from its private networks on: three hosts of a VPN without multicast,
// and a leaf in the Internet.
func privateNetwork(ctx context.Context, w *world) error {
	text, err := document("docs/nat.md")
	if err != nil {
		return err
	}
	_, text, _ = strings.Cut(text, "\n## Private networks and VPNs\n")
	steps := commands(text)
	if len(steps) != 3 {
		return fault.New("lab.privateNetwork", fault.Invalid, "docs/nat.md should have three commands: first peer, other peers, leaf")
	}
	ctx, cancel := context.WithCancel(ctx)
	vpn := &office{world: w, segment: w.network(netns.Quality{}), name: "vpn", address: func(i int) string { return fmt.Sprintf("10.8.0.%d/24", i+1) }}
	leaf := &office{world: w, segment: w.internet, address: func(int) string { return publicAddress(9) }, name: "leaf"}
	defer func() { cancel(); vpn.close(); leaf.close() }()
	for range 3 {
		if err := vpn.desk(); err != nil {
			return err
		}
		if err := vpn.desks[len(vpn.desks)-1].space.IP("link", "set", "eth0", "multicast", "off"); err != nil {
			return err
		}
	}
	address := ""
	for i, s := range []instruction{steps[0], steps[1], steps[1]} {
		if err := vpn.launch(ctx, i, s.command, address); err != nil {
			return err
		}
		if i == 0 {
			status, err := vpn.desks[0].Status(ctx)
			if err != nil {
				return err
			}
			address = "/ip4/10.8.0.1/tcp/4801/p2p/" + status.PeerID
		}
	}
	if err := vpn.offered(ctx, vpn.desks[1].register, vpn.desks[2]); err != nil {
		return err
	}
	public, err := w.servers(ctx, 2, publicAddress)
	if err != nil {
		return err
	}
	if err := leaf.desk(); err != nil {
		return err
	}
	if err := leaf.launch(ctx, 0, steps[2].command, public[0].addresses()[0]); err != nil {
		return err
	}
	register := func(ctx context.Context) error {
		_, err := w.register(ctx, public[1], "of-a-server")
		return err
	}
	if err := leaf.offered(ctx, register, leaf.desks[0]); err != nil {
		return err
	}
	status, err := leaf.desks[0].Status(ctx)
	if err == nil && status.Mode != "leaf" {
		w.violated("%s: the mode is %s", steps[2].command, status.Mode)
	}
	return err
}

// launch runs the daemon of a document at a desk, with the address of a real peer in place of the document's, until it answers.
func (o *office) launch(ctx context.Context, i int, command, address string) (err error) {
	d := o.desks[i]
	command = regexp.MustCompile(`/ip4/\S+/p2p/ID`).ReplaceAllString(command, address)
	if o.daemons[i], err = d.start(ctx, command); err != nil {
		return err
	}
	o.say("%s: $ %s", d.name, command)
	return await.Until(ctx, readerLimit, command+" answers", func(ctx context.Context) error {
		if !o.daemons[i].running() {
			return await.Never(fault.New("lab.launch", fault.Unavailable, "%s ended: %s", command, &o.daemons[i].out))
		}
		_, err := d.Status(ctx)
		return err
	})
}

// register offers a service at a desk.
func (d *desk) register(ctx context.Context) error {
	_, err := d.Offers().Register(ctx, records.Offer{
		ID: "of-" + d.name, Metadata: records.Metadata{Type: "storage"}, Capabilities: &records.Capabilities{Storage: &records.Storage{TotalSpace: 1e12}},
	})
	return err
}

// offered waits until a desk finds what was offered elsewhere.
func (o *office) offered(ctx context.Context, register func(context.Context) error, at *desk) error {
	if err := await.Until(ctx, readerLimit, "an offer", register); err != nil {
		return err
	}
	err := await.Until(ctx, readerLimit, at.name+" finds an offer", func(ctx context.Context) error {
		for _, kind := range []string{"storage", "compute"} {
			if a, err := at.Offers().Query(ctx, query.Query{Type: kind}); err != nil || len(a.Results) > 0 {
				return err
			}
		}
		return fault.New("lab.offered", fault.NotFound, "no offer")
	})
	if err != nil {
		o.violated("%v", err)
	}
	o.say("%s finds the offer of another peer", at.name)
	return ctx.Err()
}
