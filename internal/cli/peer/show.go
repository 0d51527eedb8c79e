package peer

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/coordination"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/offer"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/service"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/operator"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/pkg/query"
)

// maxShown bounds the services in which show looks for an instance.
const maxShown = 1000

// shown is one thing that an id names.
type shown struct {
	Kind  string `json:"kind"` // offer, instance, service, lock, lease, key or peer
	Value any    `json:"value"`

	table term.Layout
}

// finder finds the things of one kind that an id names. None is no error.
type finder struct {
	kind string
	find func(ctx context.Context, c *operator.Client, id, namespace string) ([]term.Document, error)
}

// finders is the table of show, in the order of its output.
func finders() []finder {
	return []finder{
		{"peer", lookupPeer}, {"offer", lookupOffer}, {"service", lookupService}, {"instance", lookupInstance},
		{"lock", lookupLock}, {"lease", lookupLease}, {"key", lookupKey},
	}
}

// Show makes the command show.
func Show(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show what an id or a name stands for", Args: command.OneArg("ID"),
		Long: "Show what an id or a name stands for: a peer (its id, or the end of it, as in tables), an offer (key, or\n" +
			"id among the types storage, compute, cdn and bandwidth), a service, an instance, a lock, a lease or a key. Shows all if there are several.",
	}
	namespace := service.NamespaceFlag(cmd)
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *operator.Client, args []string) error {
		found, failed, err := lookAll(ctx, c, args[0], *namespace)
		if err != nil {
			return err
		}
		for _, line := range failed {
			r.Say("warning: %s", line)
		}
		if len(found) == 0 {
			return exit.Answer(fault.NotFound, "ID: nothing has the name %s at this peer", args[0])
		}
		return r.Print(term.Document{Value: map[string]any{"found": found}, Items: term.Items(found), Table: shownList(found)})
	})
}

// lookAll asks for every kind. failed says which kinds are unknown, and why. err: the peer does not answer.
func lookAll(ctx context.Context, c *operator.Client, id, namespace string) (found []shown, failed []string, err error) {
	for _, l := range finders() {
		docs, err := l.find(ctx, c, id, namespace)
		switch kind := fault.KindOf(err); {
		case err == nil:
		case exit.Hopeless(err) && !exit.Answered(err):
			return nil, nil, err
		case kind == fault.Invalid, kind == fault.NotFound, kind == fault.Gone, kind == fault.Unsupported: // no such id, or no such plane
		default:
			failed = append(failed, l.kind+": "+exit.OneLine(err))
		}
		for _, d := range docs {
			found = append(found, shown{l.kind, d.Value, d.Table})
		}
	}
	return found, failed, nil
}

// shownList shows things below each other.
type shownList []shown

// On implements term.Layout.
func (list shownList) On(s term.Screen) string {
	var b strings.Builder
	for i, one := range list {
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString(s.Painted(one.Kind, term.Bold) + "\n" + one.table.On(s))
	}
	return b.String()
}

// lookupOffer asks this peer for a key or for an own offer, and then the network.
func lookupOffer(ctx context.Context, c *operator.Client, id, _ string) ([]term.Document, error) {
	rec, err := offer.OfferOf(ctx, c, id)
	if err == nil {
		return []term.Document{term.FieldsOf(rec.View)}, nil
	}
	named, wrong := queries.ParseClause("id=" + id)
	if fault.KindOf(err) != fault.NotFound || strings.HasPrefix(id, "/") || wrong != nil {
		return nil, err
	}
	answer, err := c.Offers().Query(ctx, query.Query{Types: offer.OfferTypes(), Where: []query.Clause{named}, Quality: query.Quality{Health: query.HealthAny}})
	if err != nil {
		return nil, err
	}
	var found []term.Document
	for _, r := range answer.Results {
		found = append(found, term.FieldsOf(r.Record))
	}
	return found, nil
}

// lookupPeer looks at this peer, the connected peers and the members of the group.
func lookupPeer(ctx context.Context, c *operator.Client, id, _ string) (found []term.Document, err error) {
	status, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	if term.Means(id, status.PeerID, status.Name) {
		found = append(found, statusDocument(status))
	}
	connected, err := c.Peers(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range connected {
		if term.Means(id, p.ID, "") {
			found = append(found, term.FieldsOf(p))
		}
	}
	g, _ := c.Coordination().Group(ctx) // a peer without a group, or without a quorum, still knows its peers
	for _, m := range slices.Concat(g.Voters, g.Learners) {
		if term.Means(id, m.Peer, m.Name) {
			found = append(found, term.FieldsOf(m))
		}
	}
	return found, nil
}

func lookupService(ctx context.Context, c *operator.Client, id, namespace string) ([]term.Document, error) {
	found, err := instancesOf(ctx, c, id, namespace)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return []term.Document{service.InstanceList(found, map[string]any{"service": id, "namespace": namespace})}, nil
}

func instancesOf(ctx context.Context, c *operator.Client, service, namespace string) ([]*instance.Instance, error) {
	all, err := c.Agent().Discover(ctx, instance.Query{
		Name: instance.Name{Namespace: namespace, Service: service}, Selector: instance.Selector{AnyStatus: true},
	})
	if err != nil {
		return nil, err
	}
	return all.Instances, nil
}

func lookupInstance(ctx context.Context, c *operator.Client, id, namespace string) ([]term.Document, error) {
	list, err := c.Services().List(ctx, namespace)
	if err != nil {
		return nil, err
	}
	if n := len(list.Services); n > maxShown {
		return nil, fault.New("", fault.TooLarge, "%d services are too many to look through: use %s instance show SERVICE ID", n, command.Program)
	}
	var found []term.Document
	for _, s := range list.Services {
		all, err := instancesOf(ctx, c, s.Name, namespace)
		if err != nil {
			return found, err
		}
		for _, i := range all {
			if i.ID == id {
				d, err := service.OneInstance(ctx, c, i)
				if err != nil {
					return found, err
				}
				found = append(found, d)
			}
		}
	}
	return found, nil
}

func lookupLock(ctx context.Context, c *operator.Client, id, _ string) ([]term.Document, error) {
	l, err := coordination.FindLock(ctx, c, id)
	if err != nil || len(l.Holding)+len(l.Waiting) == 0 {
		return nil, err
	}
	return []term.Document{{Value: l, Table: coordination.LockTable([]coordination.LockState{l})}}, nil
}

func lookupLease(ctx context.Context, c *operator.Client, id, _ string) ([]term.Document, error) {
	if _, err := strconv.ParseInt(id, 10, 64); err != nil {
		return nil, nil
	}
	lease, err := coordination.ParseLease(id)
	if err != nil {
		return nil, err
	}
	l, err := coordination.FindLease(ctx, c, lease)
	if err != nil {
		return nil, err
	}
	return []term.Document{coordination.LeaseDetail(l)}, nil
}

func lookupKey(ctx context.Context, c *operator.Client, id, _ string) ([]term.Document, error) {
	page, err := coordination.Keys(ctx, c, coord.Exactly(id).Request(1))
	var found []term.Document
	for _, kv := range page.Keys {
		found = append(found, term.FieldsOf(kv))
	}
	return found, err
}
