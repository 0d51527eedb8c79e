package cli

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/miekg/dns"
	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

// udpSize is the largest answer over UDP in bytes, by the DNS Flag Day 2020. Larger answers
// use TCP.
const udpSize = 1232

// lookup holds the flags of dns.
type lookup struct {
	*term.Console
	server string
	kind   string
	tcp    bool
	format term.Format
}

// recordView is the JSON form of a resource record.
type recordView struct {
	Name    string `json:"name"`
	TTL     uint32 `json:"ttl"` // seconds
	Type    string `json:"type"`
	Data    string `json:"data"`
	Section string `json:"section"` // answer, authority or additional
}

// lookupView is the JSON form of an answer.
type lookupView struct {
	Dig     string       `json:"dig"` // the equivalent command line of dig
	Status  string       `json:"status"`
	Records []recordView `json:"records"`
}

func dnsCommand(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "dns NAME", Short: "Query the peer's name server", Args: command.OneArg("NAME"),
		Long: "Query the name server of the peer, and show the equivalent command line of dig.\n\n" +
			"A NAME without dots is a service: web means web.service." + config.Default().DNSDomain[0] + ".",
		Example: "  " + command.Program + " dns web\n  " + command.Program + " dns _web._v2.service.blackhole --type SRV",
	}
	l, f := &lookup{Console: con}, cmd.Flags()
	f.StringVar(&l.server, "dns", "", "address of the name server (environment BLACKHOLE_DNS; default "+config.Default().DNS+")")
	f.StringVar(&l.kind, "type", "A", "A, AAAA, SRV, TXT or another type")
	f.BoolVar(&l.tcp, "tcp", false, "use TCP")
	timeout := f.Duration("wait", remote.DefaultTimeout/6, "longest time to wait")
	command.Output(cmd, &l.format)
	command.Complete(cmd, "type", "A", "AAAA", "SRV", "TXT", "NS", "SOA")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *timeout <= 0 {
			return fault.Invalidf("--wait", *timeout, "must be above 0")
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		return l.run(ctx, args[0])
	}
	return cmd
}

// run sends the question and shows the answer.
func (l *lookup) run(ctx context.Context, asked string) error {
	if !strings.Contains(asked, ".") {
		asked += ".service." + config.Default().DNSDomain[0]
	}
	asked = dns.Fqdn(asked)
	kind, ok := dns.StringToType[strings.ToUpper(l.kind)]
	if !ok {
		return fault.Invalidf("--type", l.kind, "%q is not a record type", l.kind)
	}
	if _, valid := dns.IsDomainName(asked); !valid {
		return fault.Invalidf("NAME", asked, "is not a domain name")
	}
	fromEnv, _ := l.Env(config.Prefix + "DNS")
	server := cmp.Or(l.server, fromEnv, config.Default().DNS)
	if server == config.Off {
		return fault.Invalidf("--dns", server, "must name a server: a peer with dns: off has no name server")
	}
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		return fault.Invalidf("--dns", server, "must be IP:port: %w", err)
	}
	view := lookupView{Dig: digLine(host, port, asked, kind, l.tcp)}
	answer, err := l.ask(ctx, server, asked, kind)
	if err != nil {
		return err
	}
	view.Status, view.Records = dns.RcodeToString[answer.Rcode], sections(answer)
	if l.format == term.AsTable {
		l.Say("%s", view.Dig)
	}
	if err := l.format.Print(l.Console, term.Document{Value: view, Items: term.Items(view.Records), Table: view.table()}); err != nil {
		return err
	}
	return outcome(asked, kind, answer)
}

// ask uses UDP, and TCP after a truncated answer.
func (l *lookup) ask(ctx context.Context, server, asked string, kind uint16) (*dns.Msg, error) {
	q := new(dns.Msg)
	q.SetQuestion(asked, kind)
	q.SetEdns0(udpSize, false)
	network := "udp"
	if l.tcp {
		network = "tcp"
	}
	for {
		answer, _, err := (&dns.Client{Net: network, UDPSize: udpSize}).ExchangeContext(ctx, q, server)
		switch {
		case ctx.Err() != nil:
			return nil, fault.Wrap("", ctx.Err())
		case err != nil:
			return nil, fault.New("", fault.Unavailable, "no name server answers at %s: %w", server, exit.Cause(err))
		case answer.Truncated && network == "udp":
			network = "tcp"
		default:
			return answer, nil
		}
	}
}

// digLine is the equivalent command line of dig.
func digLine(host, port, asked string, kind uint16, tcp bool) string {
	line := fmt.Sprintf("dig @%s -p %s %s %s", host, port, asked, dns.TypeToString[kind])
	if tcp {
		line += " +tcp"
	}
	return line
}

// sections returns the records of an answer.
func sections(m *dns.Msg) []recordView {
	views := []recordView{}
	for _, section := range []struct {
		name string
		list []dns.RR
	}{{"answer", m.Answer}, {"authority", m.Ns}, {"additional", m.Extra}} {
		for _, rr := range section.list {
			h := rr.Header()
			if h.Rrtype == dns.TypeOPT {
				continue
			}
			views = append(views, recordView{
				Name: h.Name, TTL: h.Ttl, Type: dns.TypeToString[h.Rrtype], Section: section.name,
				Data: strings.TrimPrefix(rr.String(), h.String()),
			})
		}
	}
	return views
}

func (v *lookupView) table() term.Grid {
	rows := make([][]string, len(v.Records))
	for n, r := range v.Records {
		rows[n] = []string{r.Name, strconv.FormatUint(uint64(r.TTL), 10), r.Type, r.Data, r.Section}
	}
	return term.Table([]string{"NAME", "TTL", "TYPE", "DATA", "SECTION"}, rows)
}

// outcome is the error of an answer. An answer without records of the type is not an error.
func outcome(asked string, kind uint16, m *dns.Msg) error {
	switch m.Rcode {
	case dns.RcodeSuccess:
		return nil
	case dns.RcodeNameError:
		return fault.New("", fault.NotFound, "%s does not exist", asked)
	case dns.RcodeRefused:
		return fault.New("", fault.Forbidden, "the name server does not answer for %s %s", asked, dns.TypeToString[kind])
	default:
		return fault.New("", fault.Unavailable, "the name server answers %s", dns.RcodeToString[m.Rcode])
	}
}
